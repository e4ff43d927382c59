// Labels of a run as chips: a press lists the runs that have the same.
import { clause } from "../api/filter";
import { Link } from "../router";

export function Labels({ of, onChoose }: { of: Record<string, string>; onChoose?: (clause: string) => void }) {
  return (
    <span className="labels">
      {Object.entries(of).map(([name, value]) => {
        const wanted = clause(`label.${name}`, value);
        const text = <><span className="muted">{name}</span> <b className="clip">{value}</b></>;
        return onChoose ? (
          <button key={name} type="button" className="chip label" title={`Only ${wanted}`} onClick={(event) => { event.stopPropagation(); onChoose(wanted); }}>{text}</button>
        ) : (
          <Link key={name} to={`/runs?filter=${encodeURIComponent(wanted)}`} className="chip label" title={`Runs with ${wanted}`}>{text}</Link>
        );
      })}
    </span>
  );
}
