// The filter of a list: one line of text, and the same as chips. What it means, the API says; it is never read here.
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useEffect, useId, useState, type ReactNode } from "react";
import { ApiError, get, type Schemas } from "../api/client";
import { Icon } from "./icons";

type Of = Schemas["View"]["of"];
type Reading = Schemas["FilterReading"];

const LEFT_ALONE_MS = 400;

export function useReading(of: Of, filter: string) {
  return useQuery({
    queryKey: ["filter", of, filter],
    queryFn: ({ signal }) => get("/filters/{of}", { of }, filter ? { filter } : {}, signal),
    placeholderData: keepPreviousData,
    staleTime: Infinity, // a text means what it means
    retry: false,
  });
}

/** The filter without one clause, or with one more. */
export function without(reading: Reading, index: number): string {
  return reading.clauses.filter((_, place) => place !== index).map((clause) => clause.text).join(" ");
}
export const withClause = (filter: string, clause: string): string => (filter.split(" ").includes(clause) ? filter : `${filter} ${clause}`.trim());

export function FilterBar({ of, value, onChange, children }: { of: Of; value: string; onChange: (filter: string) => void; children?: ReactNode }) {
  const [text, setText] = useState(value);
  const reading = useReading(of, text.trim());
  const list = useId();
  const help = useId();
  useEffect(() => setText(value), [value]);
  const isGood = !reading.isError && !reading.isPlaceholderData && reading.data !== undefined;
  const commit = () => {
    if (isGood && reading.data.text !== value) onChange(reading.data.text);
  };
  useEffect(() => {
    if (!isGood || text.trim() === value) return;
    const timer = setTimeout(commit, LEFT_ALONE_MS);
    return () => clearTimeout(timer);
  });
  const faults = reading.error instanceof ApiError ? reading.error.problem.errors?.map((fault) => fault.message) ?? [reading.error.message] : [];
  return (
    <div className="filter-bar">
      <div className="filters">
        <span className="filter-box">
          <Icon name="filter" size={14} />
          <input
            data-filter
            type="search"
            className="mono"
            aria-label="Filter"
            aria-invalid={faults.length > 0}
            aria-describedby={faults.length ? help : undefined}
            list={list}
            placeholder={of === "runs" ? "status:failed workflow:orders started:>-2h input.customer:acme" : "workflow:orders error:timeout"}
            spellCheck={false}
            autoComplete="off"
            value={text}
            onChange={(event) => setText(event.target.value)}
            onKeyDown={(event) => event.key === "Enter" && commit()}
          />
          <datalist id={list}>{suggestions(reading.data, text).map(([each, about]) => <option key={each} value={each}>{about}</option>)}</datalist>
        </span>
        {children}
      </div>
      {faults.length > 0 ? (
        <p className="field-error" id={help} role="alert">{faults.join("; ")}</p>
      ) : reading.data && reading.data.clauses.length > 0 ? (
        <div className="filters" role="group" aria-label="Clauses of the filter">
          {reading.data.clauses.map((clause, index) => (
            <button key={`${index} ${clause.text}`} type="button" className="chip" aria-pressed="true" aria-label={`Remove ${clause.text}`} title="Remove it" disabled={reading.isPlaceholderData || text !== value} onClick={() => onChange(without(reading.data, index))}>
              {clause.is_negated && <b>not</b>} {clause.field} {clause.comparison} <b>{clause.values.join(" or ")}</b> <Icon name="cross" size={11} />
            </button>
          ))}
          <button type="button" className="link" onClick={() => onChange("")}>Clear</button>
        </div>
      ) : null}
    </div>
  );
}

/** What could stand where the text ends: a field, or one of the words of a field. */
function suggestions(reading: Reading | undefined, text: string): [string, string][] {
  if (!reading) return [];
  const begin = text.slice(0, text.lastIndexOf(" ") + 1);
  const word = text.slice(begin.length).replace(/^-/, "");
  const sign = text.slice(begin.length).startsWith("-") ? "-" : "";
  const field = reading.fields.find((each) => word.startsWith(`${each.name}:`));
  if (field) return field.choices.map((choice): [string, string] => [`${begin}${sign}${field.name}:${choice}`, field.about]);
  return reading.fields.filter((each) => each.name.startsWith(word)).map((each): [string, string] => [`${begin}${sign}${each.name}${each.kind === "json" || each.kind === "label" ? "." : ":"}`, each.about]);
}
