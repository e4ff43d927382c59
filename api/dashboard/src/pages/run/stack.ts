// Many tasks that stand in the same place of a graph are drawn as one: nobody reads ten thousand boxes, and no browser draws them.
import type { Spec } from "./spec";

/** Graphs with fewer tasks are drawn as they are. */
const STACKED_FROM = 200;
/** So many alike are a stack. */
const ALIKE_MIN = 10;

export interface Box {
  id: string;
  /** One, or those of a stack, in the order of the graph. */
  tasks: string[];
  spec: Spec;
}

export interface Stacked {
  boxes: Box[];
  edges: [string, string][];
}

/** The boxes of a graph. Alike are tasks of one body that need the same and are needed by the same. */
export function stack(specs: Record<string, Spec>): Stacked {
  const names = Object.keys(specs);
  const after = new Map<string, string[]>();
  for (const name of names) {
    for (const need of specs[name]?.needs ?? []) {
      const known = after.get(need);
      if (known) known.push(name);
      else after.set(need, [name]);
    }
  }
  const alike = new Map<string, string[]>();
  for (const name of names) {
    const { needs = [], ...rest } = specs[name] ?? {};
    const place = names.length < STACKED_FROM ? name : JSON.stringify([[...needs].sort(), after.get(name) ?? [], rest.run ?? rest]);
    const group = alike.get(place);
    if (group) group.push(name);
    else alike.set(place, [name]);
  }
  const boxes: Box[] = [];
  const boxOf = new Map<string, string>();
  for (const group of alike.values()) {
    for (const tasks of group.length < ALIKE_MIN ? group.map((name) => [name]) : [group]) {
      const id = tasks[0] ?? "";
      boxes.push({ id, tasks, spec: specs[id] ?? {} });
      for (const name of tasks) boxOf.set(name, id);
    }
  }
  const edges = new Map<string, [string, string]>();
  for (const name of names) {
    for (const need of specs[name]?.needs ?? []) {
      const [from, to] = [boxOf.get(need) ?? need, boxOf.get(name) ?? name];
      edges.set(`${from} ${to}`, [from, to]);
    }
  }
  return { boxes, edges: [...edges.values()] };
}

/** What the names of a stack begin with. */
export function sharedStart(names: string[]): string {
  let shared = names[0] ?? "";
  for (const name of names) while (!name.startsWith(shared)) shared = shared.slice(0, -1);
  return shared;
}
