// The text of filters (docs/filters.md). It is written here and read by the API: `/filters/{of}` tells the clauses of one.

/** One clause that means exactly this value. */
export function clause(field: string, value: string, comparison = ""): string {
  const escaped = value.replace(/[\\*]/g, "\\$&").replace(/"/g, '\\"');
  return `${field}:${comparison}${/[\s,"]|^$|^[<>]/.test(value) ? `"${escaped}"` : escaped}`;
}

/** A filter of clauses, and of what is left out when it is empty. */
export function filterOf(clauses: Record<string, string | undefined>): { filter?: string } {
  const text = Object.entries(clauses).filter(([, value]) => value).map(([field, value]) => clause(field, value ?? "")).join(" ");
  return text ? { filter: text } : {};
}
