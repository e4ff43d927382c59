// Every act of the console in one place: what it does in words, its request, its command, and how to see its end.
import { fill, get, type Schemas } from "./api/client";
import { isOver, shortId } from "./api/hooks";
import { quote, type Act, type Step } from "./ui/act";

type Run = Schemas["Run"];
const withReason = (reason: string, flag = "--comment") => (reason ? ` ${flag} ${quote(reason)}` : "");

async function runStep(runId: string, wanted: (run: Run) => Step | null): Promise<Step> {
  const run = await get("/runs/{run_id}", { run_id: runId });
  return wanted(run) ?? { state: "following", text: "accepted; the run has not taken it yet" };
}

export function cancelRun(run: Run): Act {
  const open = (run.counts.running ?? 0) + (run.counts.queued ?? 0) + (run.counts.waiting ?? 0);
  return {
    title: `Cancel ${shortId(run.workflow, run.run_id)}`,
    verb: "Cancel run",
    tone: "danger",
    does: "cancel",
    will: [
      open ? `${open} open ${open === 1 ? "task ends" : "tasks end"} as cancelled; bodies that run are told to stop.` : "The run ends as cancelled.",
      `${run.counts.pending ?? 0} pending tasks never start, but for clean-ups. What has completed stays, or is undone by its compensation where the workflow has one.`,
      "A cancelled run cannot go on, and its dead letters cannot be replayed, but for those of clean-ups.",
    ],
    reason: "optional",
    path: fill("/runs/{id}/cancel", { id: run.run_id }),
    body: (reason) => ({ reason }),
    cli: (reason) => `headrace cancel ${run.run_id}${withReason(reason, "--reason")}`,
    follow: () => runStep(run.run_id, (now) => (isOver(now.status) ? { state: now.status === "cancelled" || now.status === "compensated" ? "completed" : "failed", text: `the run is ${now.status}` } : null)),
    to: `/runs/${run.run_id}`,
  };
}

const CONTROL = {
  pause: {
    verb: "Pause",
    will: ["Nothing new of the run begins. What was handed out ends and counts; timers, approvals and decisions are kept.", "It goes on when somebody resumes it, and from where it stands."],
    isEnd: (status: string) => status === "paused" || isOver(status),
  },
  resume: { verb: "Resume", will: ["What the pause withheld begins now."], isEnd: (status: string) => status !== "paused" && status !== "pausing" },
  terminate: {
    verb: "Terminate",
    will: ["The run ends now, by force and without any clean-up.", "No answer of what still runs counts, and bodies are told to stop. Nothing is undone outside.", "A terminated run cannot go on."],
    isEnd: isOver,
  },
};

export function controlRun(run: Run, what: keyof typeof CONTROL): Act {
  const { verb, will, isEnd } = CONTROL[what];
  const name = shortId(run.workflow, run.run_id);
  return {
    title: `${verb} ${name}`,
    verb,
    tone: what === "terminate" ? "danger" : "primary",
    does: what,
    will,
    reason: "optional",
    path: fill(`/runs/{id}/${what}`, { id: run.run_id }),
    body: (reason) => ({ reason }),
    cli: (reason) => `headrace ${what} ${run.run_id}${withReason(reason, "--reason")}`,
    confirm: what === "terminate" ? name : undefined,
    follow: () =>
      runStep(run.run_id, (now) => {
        if (isEnd(now.status)) return { state: "completed", text: `the run is ${now.status}` };
        return now.status === "pausing" && what === "pause" ? { state: "following", text: "pausing: what was handed out goes on to its end" } : null;
      }),
    to: `/runs/${run.run_id}`,
  };
}

export function signalRun(run: Run, signal: { name: string; key: string; data: unknown }, extra: Act["extra"], wrong?: string): Act {
  const key = signal.key.trim();
  return {
    title: `Signal ${shortId(run.workflow, run.run_id)}`,
    verb: "Send",
    does: "signal",
    will: ["The signal is stored when this is answered. A task that waits for it takes it, now or once it begins to wait.", "It is taken once."],
    path: fill("/runs/{id}/signals", { id: run.run_id }),
    body: () => ({ name: signal.name, data: signal.data, ...(key ? { key } : {}) }),
    cli: () => `headrace signal ${run.run_id} ${signal.name} --data ${quote(JSON.stringify(signal.data))}${key ? ` --key ${quote(key)}` : ""}`,
    extra,
    wrong,
    to: `/runs/${run.run_id}?tab=approvals`,
  };
}

export function releaseRun(run: Run): Act {
  return {
    title: `Release ${shortId(run.workflow, run.run_id)}`,
    verb: "Release",
    does: "release",
    will: [
      "The run goes on from where it stood aside; the event that could not be decided stays out.",
      "If the cause is still there it stands aside again, with another dead letter.",
    ],
    path: fill("/runs/{id}/release", { id: run.run_id }),
    body: () => ({}),
    cli: () => `headrace release ${run.run_id}`,
    follow: () => runStep(run.run_id, (now) => (now.status === "needs_attention" ? null : { state: "completed", text: `the run is ${now.status}` })),
    to: `/runs/${run.run_id}`,
  };
}

export interface Question {
  approval_id: string;
  run_id: string;
  workflow: string;
  task: string;
  title: string;
}

export function decide(question: Question, verdict: "approve" | "reject"): Act {
  const name = question.title || question.task;
  return {
    title: `${verdict === "approve" ? "Approve" : "Reject"}: ${name}`,
    verb: verdict === "approve" ? "Approve" : "Reject",
    tone: verdict === "approve" ? "primary" : "danger",
    does: verdict,
    will: [
      verdict === "approve"
        ? `Task ${question.task} of ${shortId(question.workflow, question.run_id)} goes on: its body is handed out, or what needs it starts.`
        : `Task ${question.task} of ${shortId(question.workflow, question.run_id)} ends as rejected; what needs it is decided by its join.`,
      "It is decided once. A second decision, also at the same moment, is refused.",
    ],
    reason: "optional",
    path: fill(`/approvals/{id}/${verdict}`, { id: question.approval_id }),
    body: (comment) => ({ comment }),
    cli: (comment) => `headrace ${verdict} ${question.run_id} --task ${question.task}${withReason(comment)}`,
    follow: async () => {
      const task = await get("/tasks/{task_id}", { task_id: `${question.run_id}.${question.task}` });
      if (task.status === "waiting") return { state: "following", text: "decided; the run has not moved yet" };
      const isEnd = ["completed", "failed", "skipped", "cancelled"].includes(task.status);
      const isGood = verdict === "approve" ? task.status === "completed" : true;
      return { state: isEnd ? (isGood ? "completed" : "failed") : "following", text: `${question.task} is ${task.status}` };
    },
    to: `/runs/${question.run_id}?task=${encodeURIComponent(question.task)}`,
  };
}

type Letter = Pick<Schemas["DeadLetter"], "dead_letter_id" | "kind" | "task" | "run_id" | "workflow" | "topic" | "partition" | "offset">;

const letterName = (letter: Letter): string =>
  letter.kind === "task" ? `${letter.task ?? "task"} of ${shortId(letter.workflow ?? "run", letter.run_id ?? "")}` : `record ${letter.topic ?? ""}/${letter.partition ?? ""}/${letter.offset ?? ""}`;

/** edited: what takes the place of the input; undefined sends the same out again. */
export function replayLetter(letter: Letter, edited?: unknown, wrong?: string): Act {
  return {
    title: `Replay ${letterName(letter)}`,
    verb: "Replay",
    does: "replay",
    will:
      letter.kind === "task"
        ? [
            `The task is handed out under a new token, with ${edited === undefined ? "the input it had" : "the edited input"} and as many attempts as its retry policy allows.`,
            "Its effect key stays the same: an effect that honours the key is not repeated. What has completed does not run again.",
            "A letter is replayed once. If it fails again it comes back as a new letter, linked to this one.",
          ]
        : [
            `The record is published again to ${letter.topic ?? "its topic"}, partition ${letter.partition ?? "?"}, under its own key${edited === undefined ? "" : ", with the edited value"}.`,
            "Whoever reads the topic sees it, not only Headrace. A letter is replayed once.",
          ],
    path: fill("/dead-letters/{id}/replay", { id: letter.dead_letter_id }),
    body: () => (edited === undefined ? {} : { input: edited }),
    cli: () => `headrace replay ${letter.dead_letter_id}${edited === undefined ? "" : ` --input ${quote(JSON.stringify(edited))}`}`,
    wrong,
    follow: async () => {
      const now = await get("/dead-letters/{dead_letter_id}", { dead_letter_id: letter.dead_letter_id });
      if (now.replay_outcome === "completed") return { state: "completed", text: letter.kind === "task" ? `${letter.task ?? "the task"} completed` : "the record was read" };
      if (now.replay_outcome === "failed_again") return { state: "failed", text: "it failed again, as a new letter" };
      if (now.replay_outcome === "cancelled") return { state: "cancelled", text: "the run was cancelled before it went out" };
      if (!letter.run_id || !letter.task) return { state: "following", text: "published; it has not been read yet" };
      const task = await get("/tasks/{task_id}", { task_id: `${letter.run_id}.${letter.task}` });
      return { state: "following", text: task.status === "failed" ? "accepted; not handed out yet" : `${task.status}, attempt ${Math.max(task.attempt, 1)}` };
    },
    to: `/dead-letters/${letter.dead_letter_id}`,
  };
}

export function discardLetter(letter: Letter): Act {
  return {
    title: `Discard ${letterName(letter)}`,
    verb: "Discard",
    tone: "danger",
    does: "discard",
    will: ["The letter is closed without a repair and can never be replayed.", letter.kind === "task" ? "Its run stays failed." : "What the record asked for does not happen."],
    reason: "required",
    path: fill("/dead-letters/{id}/discard", { id: letter.dead_letter_id }),
    body: (reason) => ({ reason }),
    cli: (reason) => `headrace discard ${letter.dead_letter_id}${withReason(reason, "--reason")}`,
    to: `/dead-letters/${letter.dead_letter_id}`,
  };
}

export function replayMany(selection: Schemas["DeadLetterSelection"], name: string, filter: string, rate: number, done: (replayId: string) => void): Act {
  let replayId = "";
  return {
    title: `Replay ${selection.count.toLocaleString("en")} letters of ${name}`,
    verb: `Replay ${selection.count.toLocaleString("en")}`,
    does: "replay",
    will: [
      `Exactly the ${selection.count.toLocaleString("en")} letters that were counted go out, ${rate} a second: about ${Math.max(1, Math.ceil(selection.count / rate))} s in all.`,
      "Effect keys stay the same. A letter that was closed meanwhile is counted as refused.",
      selection.has_more ? "Older letters may match as well and are left: one selection holds 10,000." : "It can be stopped; what has not gone out by then stays parked.",
    ],
    path: "/dead-letters/replay",
    body: () => ({ filter, dead_letter_ids: selection.dead_letter_ids, rate }),
    cli: () => `headrace replay --filter ${quote(filter)} --rate ${rate}`,
    confirm: String(selection.count),
    done: (answer) => {
      replayId = (answer as Schemas["BulkReplay"]).replay_id;
      done(replayId);
    },
    follow: async () => {
      const now = await get("/dead-letters/replays/{replay_id}", { replay_id: replayId });
      const pending = now.outcomes.pending ?? 0;
      const text = `${now.replayed} out, ${now.left} left · ${now.outcomes.completed ?? 0} completed, ${now.outcomes.failed_again ?? 0} failed again${now.refused ? `, ${now.refused} refused` : ""}`;
      if (now.left || pending) return { state: "following", text };
      return { state: now.outcomes.failed_again ? "failed" : "completed", text };
    },
    to: "/dead-letters?tab=replays",
  };
}

export function discardMany(selection: Schemas["DeadLetterSelection"], name: string, filter: string): Act {
  return {
    title: `Discard ${selection.count.toLocaleString("en")} letters of ${name}`,
    verb: `Discard ${selection.count.toLocaleString("en")}`,
    tone: "danger",
    does: "discard",
    will: [`Exactly the ${selection.count.toLocaleString("en")} letters that were counted are closed without a repair.`, "They can never be replayed; their runs stay as they are."],
    reason: "required",
    path: "/dead-letters/discard",
    body: (reason) => ({ filter, dead_letter_ids: selection.dead_letter_ids, reason }),
    cli: (reason) => `headrace discard --filter ${quote(filter)}${withReason(reason, "--reason")}`,
    confirm: String(selection.count),
    to: "/dead-letters",
  };
}

export function stopReplay(replay: Schemas["BulkReplay"]): Act {
  return {
    title: "Stop the replay",
    verb: "Stop",
    tone: "danger",
    does: "stop",
    will: [`${replay.left} letters that have not gone out yet stay parked.`, `The ${replay.replayed} that went out go on.`],
    path: fill("/dead-letters/replays/{id}/stop", { id: replay.replay_id }),
    body: () => undefined,
    cli: () => `headrace replay --stop ${replay.replay_id}`,
    to: "/dead-letters?tab=replays",
  };
}

export function resolveTask(task: { task_id: string; run_id: string; task: string; workflow: string }, outcome: "happened" | "did_not_happen" | "fail", output: unknown, extra: Act["extra"], wrong?: string): Act {
  const words = { happened: "it happened", did_not_happen: "it did not happen", fail: "give it up" }[outcome];
  return {
    title: `${task.task} of ${shortId(task.workflow, task.run_id)}: ${words}`,
    verb: { happened: "It happened", did_not_happen: "It did not: retry", fail: "Fail the task" }[outcome],
    tone: outcome === "fail" ? "danger" : "primary",
    does: words,
    will: {
      happened: ["The task completes with the result below; its body does not run again.", "What needs it goes on with this result."],
      did_not_happen: ["The body runs again, with the same effect key.", "If the effect did happen after all, it happens twice unless the other side honours the key."],
      fail: ["The task ends as failed, and what needs it is decided by its join."],
    }[outcome],
    reason: "optional",
    path: fill("/tasks/{id}/resolve", { id: task.task_id }),
    body: (comment) => (outcome === "happened" ? { outcome, output, comment } : { outcome, comment }),
    cli: (comment) => `headrace resolve ${task.run_id} ${task.task} --${{ happened: "happened", did_not_happen: "did-not", fail: "fail" }[outcome]}${outcome === "happened" ? ` --output ${quote(JSON.stringify(output))}` : ""}${withReason(comment)}`,
    extra,
    wrong,
    follow: async () => {
      const now = await get("/tasks/{task_id}", { task_id: task.task_id });
      if (now.status === "waiting") return { state: "following", text: "said; the run has not moved yet" };
      const isEnd = ["completed", "failed", "skipped", "cancelled"].includes(now.status);
      return { state: isEnd ? (now.status === "completed" || outcome === "fail" ? "completed" : "failed") : "following", text: `${task.task} is ${now.status}` };
    },
    to: `/runs/${task.run_id}?task=${encodeURIComponent(task.task)}`,
  };
}

export function deleteSubscription(name: string, topic: string): Act {
  return {
    title: `Delete subscription ${name}`,
    verb: "Delete",
    tone: "danger",
    does: "delete",
    will: [`Records of ${topic} start no more runs through it. Runs that it started stay.`, "What was read before a new one of this name is made is not read again."],
    method: "DELETE",
    path: fill("/subscriptions/{name}", { name }),
    body: () => undefined,
    cli: () => null,
    confirm: name,
  };
}
