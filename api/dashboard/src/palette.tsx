// Find anything: pages, workflows, a run by its id.
import { useState, type KeyboardEvent } from "react";
import { useQuery } from "@tanstack/react-query";
import { get } from "./api/client";
import { shortId, useWorkflows } from "./api/hooks";
import { GOES } from "./keys";
import { setPrefs } from "./prefs";
import { go } from "./router";
import { Icon, type IconName } from "./ui/icons";
import { Dialog } from "./ui/parts";
import { Status } from "./ui/status";

interface Entry {
  id: string;
  icon: IconName;
  word: string;
  more?: string;
  status?: string;
  act: () => void;
}

const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;

export function Palette({ onClose }: { onClose: () => void }) {
  const [text, setText] = useState("");
  const [at, setAt] = useState(0);
  const workflows = useWorkflows();
  const recent = useQuery({ queryKey: ["runs", "palette"], queryFn: ({ signal }) => get("/runs", {}, { limit: 100 }, signal) });
  const wanted = text.trim().toLowerCase();
  const entries: Entry[] = [
    ...(UUID.test(wanted) ? [{ id: "run", icon: "runs" as const, word: `Run ${wanted}`, act: () => go(`/runs/${wanted}`) }] : []),
    ...Object.values(GOES).map(({ to, word }): Entry => ({ id: to, icon: "right", word, more: "page", act: () => go(to) })),
    ...(workflows.data?.items ?? []).flatMap((workflow): Entry[] => [
      { id: `w-${workflow.name}`, icon: "workflows", word: workflow.name, more: `workflow, v${workflow.latest_version}`, act: () => go(`/workflows/${workflow.name}`) },
      { id: `s-${workflow.name}`, icon: "play", word: `Start ${workflow.name}`, more: "launch form", act: () => go(`/workflows/${workflow.name}?tab=launch`) },
    ]),
    ...(recent.data?.items ?? []).map((run): Entry => ({ id: run.run_id, icon: "runs", word: shortId(run.workflow, run.run_id), status: run.status, act: () => go(`/runs/${run.run_id}`) })),
    { id: "dark", icon: "moon", word: "Dark mode", act: () => setPrefs({ theme: "dark" }) },
    { id: "light", icon: "sun", word: "Light mode", act: () => setPrefs({ theme: "light" }) },
    { id: "dense", icon: "dense", word: "Dense rows", act: () => setPrefs({ density: "dense" }) },
    { id: "normal", icon: "dense", word: "Normal rows", act: () => setPrefs({ density: "normal" }) },
  ];
  const found = entries.filter((entry) => wanted.split(/\s+/).every((part) => `${entry.word} ${entry.more ?? ""} ${entry.id}`.toLowerCase().includes(part))).slice(0, 12);
  const chosen = Math.min(at, found.length - 1);
  const key = (event: KeyboardEvent) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      setAt((found.length + chosen + (event.key === "ArrowDown" ? 1 : -1)) % Math.max(found.length, 1));
    } else if (event.key === "Enter") {
      event.preventDefault();
      found[chosen]?.act();
      onClose();
    }
  };
  return (
    <Dialog title="Go to" onClose={onClose}>
      <div className="palette" onKeyDown={key}>
        <input
          autoFocus
          value={text}
          placeholder="a page, a workflow, the end of a run's id …"
          aria-label="What to go to"
          role="combobox"
          aria-expanded="true"
          aria-controls="palette-found"
          aria-activedescendant={found[chosen] ? `palette-${chosen}` : undefined}
          onChange={(event) => {
            setText(event.target.value);
            setAt(0);
          }}
        />
        <ul id="palette-found" role="listbox" aria-label="Found">
          {found.map((entry, index) => (
            <li key={entry.id} id={`palette-${index}`} role="option" aria-selected={index === chosen} onMouseEnter={() => setAt(index)} onClick={() => { entry.act(); onClose(); }}>
              <Icon name={entry.icon} size={14} />
              <span>{entry.word}</span>
              <span className="grow" />
              {entry.status ? <Status of={entry.status} compact /> : <span className="faint">{entry.more}</span>}
            </li>
          ))}
          {!found.length && <li className="faint" role="option" aria-selected="false">Nothing of that name.</li>}
        </ul>
      </div>
    </Dialog>
  );
}
