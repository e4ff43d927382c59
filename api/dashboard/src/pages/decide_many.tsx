// Several questions are decided with one reason: one by one, each under a key of its own, and what became of each stands by itself.
import { useQueryClient } from "@tanstack/react-query";
import { useRef, useState } from "react";
import { decide } from "../acts";
import { ApiError, newKey, send, type Schemas } from "../api/client";
import { shortId } from "../api/hooks";
import { usePrefs } from "../prefs";
import { actorOf } from "../session";
import { Command, type Step } from "../ui/act";
import { fieldsOf } from "../ui/form";
import { Button, Dialog, Field } from "../ui/parts";
import { Status } from "../ui/status";

type Approval = Schemas["Approval"];

/** Why a question is not decided together with those of that form; the form is that of the first that was chosen. */
export function whyAlone(question: Approval, form: unknown): string | undefined {
  if (question.form !== null && (fieldsOf(question.form) ?? [{ isRequired: true }]).some((field) => field.isRequired)) return "its form has to be filled in";
  return form === undefined || JSON.stringify(question.form) === JSON.stringify(form) ? undefined : "its form is another one";
}

type Outcome = Step | { state: "sending" | "refused"; text: string };

const LOOK_MS = 1000;
const LOOKS_MAX = 60;
const pause = () => new Promise((resolve) => setTimeout(resolve, LOOK_MS));

export function DecideMany({ questions: given, verdict, onClose }: { questions: Approval[]; verdict: "approve" | "reject"; onClose: () => void }) {
  // What was chosen stays, though the list behind loses each that is decided.
  const [questions] = useState(given);
  const keys = useRef(new Map(questions.map((question) => [question.approval_id, newKey()])));
  const client = useQueryClient();
  const actor = actorOf(usePrefs());
  const [reason, setReason] = useState(`${verdict} by ${actor}`);
  const [outcomes, setOutcomes] = useState<Record<string, Outcome>>({});
  const [isSending, setSending] = useState(false);
  const word = verdict === "approve" ? "Approve" : "Reject";
  const left = questions.filter((question) => !outcomes[question.approval_id]);

  const note = (id: string, outcome: Outcome) => setOutcomes((before) => ({ ...before, [id]: outcome }));
  const decideOne = async (question: Approval) => {
    const id = question.approval_id;
    const act = decide(question, verdict);
    note(id, { state: "sending", text: "" });
    try {
      await send({ method: "POST", path: act.path, body: act.body(reason.trim(), act.form?.initial ?? {}), key: keys.current.get(id) });
    } catch (error) {
      const text = error instanceof Error ? error.message : String(error);
      note(id, { state: error instanceof ApiError && error.isAway ? "failed" : "refused", text });
      return;
    }
    note(id, { state: "following", text: "accepted" });
    void followOne(id, act.follow);
  };
  const followOne = async (id: string, look: (() => Promise<Step>) | undefined) => {
    for (let looks = 0; look && looks < LOOKS_MAX; looks++) {
      const step = await look().catch(() => null); // away for a moment: looked at again
      if (step) note(id, step);
      if (step && step.state !== "following") break;
      await pause();
    }
    void client.invalidateQueries({ queryKey: ["approvals"] });
  };
  const decideAll = async () => {
    setSending(true);
    for (const question of left) await decideOne(question);
    setSending(false);
  };
  return (
    <Dialog title={`${word} ${questions.length} questions`} onClose={onClose}>
      <form onSubmit={(event) => { event.preventDefault(); void decideAll(); }}>
        <div className="dialog-body">
          <ul className="will">
            <li>Each is answered by itself, one after the other. One that is refused, say since somebody was faster or you may not, says why, and the others stand.</li>
            <li>{verdict === "approve" ? "What a yes is waited for goes on; where more than one is needed, yours is one of them." : "The first no decides, whoever else has agreed."}</li>
          </ul>
          <Field label="Reason or comment" hint={`kept with each of them, with your name: ${actor}`}>
            {(id) => <input id={id} value={reason} disabled={isSending || left.length < questions.length} onChange={(event) => setReason(event.target.value)} maxLength={1000} />}
          </Field>
          <ul className="plain decided" aria-label="Answers">
            {questions.map((question) => {
              const outcome = outcomes[question.approval_id];
              return (
                <li key={question.approval_id} data-outcome={outcome?.state ?? "waiting"}>
                  <b>{question.title || question.task}</b> <span className="mono muted">{shortId(question.workflow, question.run_id)}</span>{" "}
                  {outcome && <><Status of={outcome.state === "sending" ? "following" : outcome.state} word=" " compact /> <span>{outcome.text}</span></>}
                </li>
              );
            })}
          </ul>
          <details className="same-as">
            <summary>The same from a terminal or a script</summary>
            <Command text={questions.map((question) => decide(question, verdict).cli(reason.trim(), {})).join(" ; ")} />
          </details>
        </div>
        <footer className="dialog-foot">
          <span className="grow" />
          <Button onClick={onClose}>{left.length ? "Not now" : "Close"}</Button>
          <Button type="submit" kind={verdict === "approve" ? "primary" : "danger"} disabled={isSending || !left.length}>{word} {left.length || ""}</Button>
        </footer>
      </form>
    </Dialog>
  );
}
