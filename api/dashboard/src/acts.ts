// Every act of the console in one place: what it does in words, its request, its command, and how to see its end.
import { fill, get, type Schemas } from "./api/client";
import { isOver, isTaskOver, shortId } from "./api/hooks";
import { currentPrefs } from "./prefs";
import { rolesOf } from "./session";
import { quote, type Act, type Step } from "./ui/act";
import { defaultsOf, fieldsOf } from "./ui/form";

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

export type Question = Pick<Schemas["Approval"], "approval_id" | "run_id" | "workflow" | "task" | "title" | "form" | "needed" | "votes" | "no_self_approval">;

/** The yeses that a question has, whoever gave them. */
export const yesesOf = (question: Pick<Question, "votes">): number =>
  Array.isArray(question.votes) ? question.votes.filter((vote) => (vote as { decision?: string }).decision === "approve").length : 0;

function whatAYesDoes(question: Question): string[] {
  const goesOn = `Task ${question.task} of ${shortId(question.workflow, question.run_id)} goes on: its body is handed out, or what needs it starts.`;
  if (question.needed === 1) return [goesOn, "It is decided once. A second decision, also at the same moment, is refused."];
  const missing = question.needed - yesesOf(question) - 1;
  return [
    `Your vote is one of ${question.needed} that it takes; ${yesesOf(question)} ${yesesOf(question) === 1 ? "is" : "are"} there already.`,
    missing > 0 ? `It goes on to wait for ${missing} more.` : goesOn,
    "Nobody has two votes, also not in the place of somebody else. A vote cannot be taken back.",
  ];
}

export function decide(question: Question, verdict: "approve" | "reject"): Act {
  const name = question.title || question.task;
  const isYes = verdict === "approve";
  const schema = isYes ? question.form : null;
  const fields = schema === null ? null : (fieldsOf(schema) ?? [{ name: "form", schema: { title: "Answer" }, kind: "json" as const, isRequired: true }]);
  const isWhole = schema !== null && !fieldsOf(schema);
  const answer = (values: Record<string, unknown>) => (fields === null ? {} : { form: isWhole ? values.form : values });
  const flags = (values: Record<string, unknown>) => (fields === null ? "" : ` --form ${quote(JSON.stringify(isWhole ? values.form : values) ?? "null")}`);
  const roles = () => rolesOf(currentPrefs()).map((role) => ` --role ${quote(role)}`).join("");
  return {
    title: `${isYes ? "Approve" : "Reject"}: ${name}`,
    verb: isYes ? "Approve" : "Reject",
    tone: isYes ? "primary" : "danger",
    does: verdict,
    will: [
      ...(isYes
        ? whatAYesDoes(question)
        : [
            `Task ${question.task} of ${shortId(question.workflow, question.run_id)} ends as rejected; what needs it is decided by its join.`,
            question.needed > 1 ? "The first no decides, whoever else has agreed." : "It is decided once. A second decision, also at the same moment, is refused.",
          ]),
      ...(question.no_self_approval ? ["Whoever started the run has no vote."] : []),
    ],
    reason: "optional",
    path: fill(`/approvals/{id}/${verdict}`, { id: question.approval_id }),
    form: fields === null ? undefined : { fields, initial: defaultsOf(schema), under: isWhole ? undefined : "form" },
    body: (comment, values) => ({ comment, ...answer(values) }),
    cli: (comment, values) => `headrace ${verdict} ${question.run_id} --task ${question.task}${withReason(comment)}${flags(values)}${roles()}`,
    follow: async () => {
      const now = await get("/approvals/{approval_id}", { approval_id: question.approval_id });
      if (now.status === "waiting") return { state: "completed", text: `your vote is kept: ${yesesOf(now)} of ${now.needed}` };
      const task = await get("/tasks/{task_id}", { task_id: `${question.run_id}.${question.task}` });
      if (task.status === "waiting") return { state: "following", text: "decided; the run has not moved yet" };
      const isGood = isYes ? task.status === "completed" : true;
      return { state: isTaskOver(task.status) ? (isGood ? "completed" : "failed") : "following", text: `${question.task} is ${task.status}` };
    },
    to: `/runs/${question.run_id}?task=${encodeURIComponent(question.task)}`,
  };
}

export function commentOn(question: Question): Act {
  return {
    title: `Comment: ${question.title || question.task}`,
    verb: "Comment",
    does: "comment",
    will: ["What you say stands in the record of the question, with your name. It decides nothing."],
    form: { fields: [{ name: "comment", schema: { title: "Comment", type: "string", maxLength: 10_000 }, kind: "long", isRequired: true }] },
    path: fill("/approvals/{id}/comments", { id: question.approval_id }),
    body: (_, { comment }) => ({ comment }),
    cli: (_, { comment }) => `headrace comment ${question.run_id} ${quote(String(comment ?? ""))} --task ${question.task}`,
    to: `/approvals?id=${question.approval_id}`,
  };
}

export function delegate(from: string): Act {
  const until = new Date(Date.now() + 7 * 86_400_000).toISOString().slice(0, 19) + "Z";
  return {
    title: "Let somebody decide in your place",
    verb: "Delegate",
    does: "delegate",
    will: [
      "They may answer what you may answer, from the first to the second instant. The record says who voted, and in whose place.",
      "The vote is yours: they and you together have one. They cannot pass it on.",
    ],
    reason: "optional",
    path: "/delegations",
    form: {
      fields: [
        { name: "from", schema: { title: "Whose right", description: "your name, or a role of yours as role:finance", type: "string" }, kind: "text", isRequired: true },
        { name: "to", schema: { title: "Who decides", type: "string" }, kind: "text", isRequired: true },
        { name: "starts_at", schema: { title: "From", description: "an instant; empty: from now on", type: "string" }, kind: "text", isRequired: false },
        { name: "ends_at", schema: { title: "Until", description: "an instant, such as 2026-12-24T18:00:00Z", type: "string" }, kind: "text", isRequired: true },
      ],
      initial: { from, ends_at: until },
    },
    body: (reason, values) => ({ ...values, reason }),
    cli: (reason, { from: whose, to, starts_at, ends_at }) =>
      `headrace delegate ${quote(String(to ?? ""))} --until ${String(ends_at ?? "")}${starts_at ? ` --from ${String(starts_at)}` : ""}${String(whose ?? "").startsWith("role:") ? ` --role ${quote(String(whose).slice(5))}` : ""}${withReason(reason, "--reason")}`,
    to: "/approvals?show=delegations",
  };
}

export function endDelegation(delegation: Schemas["Delegation"]): Act {
  return {
    title: `End the delegation from ${delegation.from} to ${delegation.to}`,
    verb: "End it",
    tone: "danger",
    does: "end",
    will: [`${delegation.to} no longer decides in place of ${delegation.from}. What was decided by it stands.`],
    path: fill("/delegations/{id}/end", { id: delegation.delegation_id }),
    body: () => undefined,
    cli: () => null,
    to: "/approvals?show=delegations",
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

// == a task, skipped ==================================================================================================
export function skipTask(run: Run, task: string, output: unknown, extra: Act["extra"], wrong?: string): Act {
  return {
    title: `Skip ${task} of ${shortId(run.workflow, run.run_id)}`,
    verb: "Skip with this output",
    does: "skip",
    will: [
      "The task completes with the output below, and its body does not run. What runs of it is told to stop, and its answer counts no more.",
      "What needs it goes on with this output. Its dead letter, if it has one, is closed as discarded.",
    ],
    reason: "optional",
    path: fill("/tasks/{id}/skip", { id: `${run.run_id}.${task}` }),
    body: (reason) => ({ output, reason }),
    cli: (reason) => `headrace skip ${run.run_id} ${task} --output ${quote(JSON.stringify(output))}${withReason(reason, "--reason")}`,
    extra,
    wrong,
    follow: async () => {
      const now = await get("/tasks/{task_id}", { task_id: `${run.run_id}.${task}` });
      return now.status === "completed" ? { state: "completed", text: `${task} is completed` } : { state: "following", text: `accepted; ${task} is ${now.status} still` };
    },
    to: `/runs/${run.run_id}?task=${encodeURIComponent(task)}`,
  };
}

export function pauseTask(run: Run, task: string, what: "pause" | "resume"): Act {
  return {
    title: `${what === "pause" ? "Pause" : "Resume"} ${task} of ${shortId(run.workflow, run.run_id)}`,
    verb: what === "pause" ? "Pause" : "Resume",
    does: what,
    will:
      what === "pause"
        ? ["Nothing new of this task begins, nor of its items. What was handed out ends and counts; its retries and its turn wait.", "The rest of the run goes on."]
        : ["What the pause of the task withheld begins now."],
    reason: "optional",
    path: fill(`/tasks/{id}/${what}`, { id: `${run.run_id}.${task}` }),
    body: (reason) => ({ reason }),
    cli: (reason) => `headrace ${what} ${run.run_id} --task ${task}${withReason(reason, "--reason")}`,
    follow: async () => {
      const now = await get("/tasks/{task_id}", { task_id: `${run.run_id}.${task}` });
      return now.is_paused === (what === "pause") ? { state: "completed", text: `${task} is ${what === "pause" ? "paused" : "resumed"}` } : { state: "following", text: "accepted; the run has not taken it yet" };
    },
    to: `/runs/${run.run_id}?task=${encodeURIComponent(task)}`,
  };
}

// == pauses of many ===================================================================================================
const HELD_BACK = {
  workflow: {
    pause: ["Its open runs are told one by one: nothing new of them begins. Runs that are started meanwhile begin paused.", "What was handed out ends and counts; timers, approvals and signals are kept; children of other workflows go on."],
    resume: ["What the pause withheld begins, in the order of the graph.", "Runs that were paused by themselves as well stay so."],
  },
  queue: {
    pause: ["What is handed out to the queue is kept back, of all workflows: tasks stay queued, and use up no attempt.", "What workers have taken, or what waits in Kafka for them, goes on."],
    resume: ["The commands that were kept back go out, the oldest first. Those whose task has moved on meanwhile are dropped."],
  },
};

export function holdBack(kind: "workflow" | "queue", name: string, what: "pause" | "resume"): Act {
  return {
    title: `${what === "pause" ? "Pause" : "Resume"} ${kind} ${name}`,
    verb: what === "pause" ? "Pause" : "Resume",
    does: what,
    will: HELD_BACK[kind][what],
    reason: "optional",
    path: fill(`/${kind}s/{name}/${what}`, { name }),
    body: (reason) => ({ reason }),
    cli: (reason) => `headrace ${what} ${kind} ${name}${withReason(reason, "--reason")}`,
    follow: kind === "queue" ? undefined : () => followPause(name, what),
    to: kind === "queue" ? "/workers?tab=pauses" : `/workflows/${name}`,
  };
}

async function followPause(workflow: string, what: "pause" | "resume"): Promise<Step> {
  const pause = (await get("/pauses", {}, { limit: 200 })).items.find((each) => each.workflow === workflow);
  if (!pause) return what === "resume" ? { state: "completed", text: "its runs go on" } : { state: "cancelled", text: "somebody has resumed it" };
  const left = Object.entries(pause.runs).filter(([status]) => status !== "paused");
  const text = Object.entries(pause.runs).map(([status, runs]) => `${runs} ${status}`).join(", ");
  return left.length ? { state: "following", text } : { state: "completed", text: text || "it has no open run" };
}

// == pools ============================================================================================================
export function setPool(pool: { name: string; limit?: number | null; rate?: string | null; held?: number; waiting?: number }, isNew = false): Act {
  return {
    title: isNew ? "Set a pool" : `Limits of pool ${pool.name}`,
    verb: "Set",
    does: "set",
    will: [
      "It counts at once. Nothing that holds a slot is stopped: with a lower limit nothing more is granted until so many are free, with 0 nothing begins.",
      ...(pool.held === undefined ? [] : [`${pool.held} ${pool.held === 1 ? "task holds" : "tasks hold"} a slot now, ${pool.waiting ?? 0} wait.`]),
    ],
    method: "PUT",
    path: fill("/pools/{name}", { name: pool.name }),
    form: {
      fields: [
        { name: "limit", schema: { title: "Slots", description: "tasks that hold one at once; empty: any number", type: "integer", minimum: 0, maximum: 1_000_000 }, kind: "integer", isRequired: false },
        { name: "rate", schema: { title: "Rate", description: "how many begin in some time, such as 10/s or 100/m; empty: any number", type: "string" }, kind: "text", isRequired: false },
      ],
      initial: { ...(pool.limit == null ? {} : { limit: pool.limit }), ...(pool.rate ? { rate: pool.rate } : {}) },
    },
    body: (_, values) => values,
    cli: (_, { limit, rate }) => `headrace set-pool ${pool.name}${limit === undefined ? "" : ` --limit ${String(limit)}`}${rate === undefined ? "" : ` --rate ${quote(String(rate))}`}`,
    to: `/workers?tab=pools&pool=${encodeURIComponent(pool.name)}`,
  };
}

export function removePool(name: string): Act {
  return {
    title: `Remove pool ${name}`,
    verb: "Remove",
    tone: "danger",
    does: "remove",
    will: ["A task that names it waits until somebody sets it again.", "It is refused while a task holds a slot of it, or waits for one."],
    method: "DELETE",
    path: fill("/pools/{name}", { name }),
    body: () => undefined,
    cli: () => `headrace remove-pool ${name}`,
    confirm: name,
    to: "/workers?tab=pools",
  };
}

export function prioritise(run: { run_id: string; workflow: string; priority?: number }): Act {
  return {
    title: `Priority of ${shortId(run.workflow, run.run_id)}`,
    verb: "Set",
    does: "prioritise",
    will: ["A point is worth a minute of waiting in the queues of pools, also for tasks of it that wait already.", "It orders nothing else: not the queues of workers, and not what holds a slot."],
    reason: "optional",
    path: fill("/runs/{id}/priority", { id: run.run_id }),
    form: {
      fields: [{ name: "priority", schema: { title: "Priority", type: "integer", minimum: -100, maximum: 100 }, kind: "integer", isRequired: true }],
      initial: { priority: run.priority ?? 0 },
    },
    body: (reason, { priority }) => ({ priority, reason }),
    cli: (reason, { priority }) => `headrace prioritise ${run.run_id} ${String(priority ?? "N")}${withReason(reason, "--reason")}`,
    to: `/runs/${run.run_id}`,
  };
}

// == many runs ========================================================================================================
export function stopBulk(bulk: Pick<Schemas["Bulk"], "bulk_id" | "act" | "left" | "done">): Act {
  return {
    title: `Stop: ${bulk.act} of many`,
    verb: "Stop",
    tone: "danger",
    does: "stop",
    will: [`Of ${bulk.left.toLocaleString("en")} that have not had their turn nothing is asked.`, `What was asked of the ${bulk.done.toLocaleString("en")} others stands.`],
    path: fill("/bulk/{id}/stop", { id: bulk.bulk_id }),
    body: () => undefined,
    cli: () => `headrace bulk --stop ${bulk.bulk_id}`,
    to: `/bulk/${bulk.bulk_id}`,
  };
}

// == a worker, where headrace dev is ==================================================================================
export function crashWorker(worker: Pick<Schemas["Worker"], "session_id" | "worker" | "held">): Act {
  return {
    title: `Crash ${worker.worker}`,
    verb: "Crash",
    tone: "danger",
    does: "crash",
    will: [
      "Its processes are killed without a warning, as if its host were lost. `headrace dev` starts another one.",
      worker.held ? `The ${worker.held} that it holds are lost when its lease ends, and go to another worker with a higher token. What has ended does not run again.` : "It holds nothing now.",
    ],
    path: fill("/workers/{id}/crash", { id: worker.session_id }),
    body: () => undefined,
    cli: () => null,
    follow: async () => {
      const { items } = await get("/workers", {}, { limit: 100 });
      const other = items.find((each) => each.worker === worker.worker && each.live && each.session_id !== worker.session_id);
      return other ? { state: "completed", text: `crashed; ${other.worker} is there again, as another session` } : { state: "following", text: "killed; another one starts" };
    },
    to: "/workers",
  };
}

// == views ============================================================================================================
export function keepView(of: Schemas["View"]["of"], filter: string): Act {
  return {
    title: "Keep this filter as a view",
    verb: "Keep",
    does: "keep",
    will: [`Whoever presses it sees what matches then: ${filter}`, "For yourself, or for all who may look; only you change it."],
    path: "/views",
    form: {
      fields: [
        { name: "name", schema: { title: "Name", type: "string", maxLength: 200 }, kind: "text", isRequired: true },
        { name: "is_shared", schema: { title: "For all" }, kind: "boolean", isRequired: false },
      ],
    },
    body: (_, values) => ({ ...values, of, filter }),
    cli: () => null,
  };
}

export function removeView(view: Schemas["View"]): Act {
  return {
    title: `Remove view ${view.name}`,
    verb: "Remove",
    tone: "danger",
    does: "remove",
    will: [view.is_shared ? "Nobody sees it any more. No run is touched." : "No run is touched."],
    method: "DELETE",
    path: fill("/views/{id}", { id: view.view_id ?? "" }),
    body: () => undefined,
    cli: () => null,
  };
}
