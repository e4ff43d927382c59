// The text of filters (docs/filters.md). It is written here and read by the API: `/filters/{of}` tells the clauses of one.

/** One clause that means exactly this value. */
export function clause(field: string, value: string, comparison = ""): string {
  const escaped = value.replace(/[\\*]/g, "\\$&").replace(/"/g, '\\"');
  return `${field}:${comparison}${/[\s,"]|^$|^[<>]/.test(value) ? `"${escaped}"` : escaped}`;
}

/** A filter of clauses; what has no value is left out. */
export function filterOf(clauses: Record<string, string | number | null | undefined>): string {
  return Object.entries(clauses).filter(([, value]) => value !== null && value !== undefined && value !== "").map(([field, value]) => clause(field, String(value))).join(" ");
}
