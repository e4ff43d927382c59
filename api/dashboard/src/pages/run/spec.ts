// A task as the published definition writes it: the fields that the console shows.
export interface Spec {
  run?: string;
  needs?: string[];
  join?: string | number;
  if?: string;
  approval?: { title?: string; on_expiry?: string };
  signal?: { name?: string } | string;
  map?: unknown;
  repeat?: { until?: string; max?: number; delay?: string };
  compensate?: { run?: string } | string;
  workflow?: { name?: string } | string;
  wait?: { for?: string; until?: string };
  queue?: string;
  pool?: { name?: string; fairness_key?: string } | string;
  timeout?: string;
  deadline?: unknown;
  start_within?: string;
  exclusive?: boolean;
  effect?: string;
}

export const specsOf = (definition: unknown): Record<string, Spec> => (definition as { tasks?: Record<string, Spec> } | null)?.tasks ?? {};

/** A length, or an instant that is worked out. */
export function deadlineWord(deadline: unknown): string {
  if (deadline !== null && typeof deadline === "object") return Object.values(deadline).map(String).join(" ");
  return String(deadline);
}

export const poolOf = ({ pool }: Spec): string | undefined => (typeof pool === "string" ? pool : pool?.name);

export const childOf = ({ workflow }: Spec): string | undefined => (typeof workflow === "string" ? workflow : workflow?.name);
