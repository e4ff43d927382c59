// Where the tasks of a graph stand: computed once for a version, off the main thread, and kept.
import ELK, { type ElkNode } from "elkjs/lib/elk-api.js";
import workerUrl from "elkjs/lib/elk-worker.min.js?url";

export interface Laid {
  nodes: Map<string, { x: number; y: number }>;
  width: number;
  height: number;
}

export interface Shape {
  tasks: string[];
  edges: [string, string][];
}

export const NODE = { width: 172, height: 50 };
const KEPT_MAX = 50;

let elk: InstanceType<typeof ELK> | undefined;
const kept = new Map<string, Promise<Laid>>();

/** version: names the shape; the same name is the same layout. */
export function layout(version: string, shape: Shape): Promise<Laid> {
  const known = kept.get(version);
  if (known) return known;
  const laid = compute(shape);
  if (kept.size >= KEPT_MAX) kept.delete(kept.keys().next().value ?? "");
  kept.set(version, laid);
  laid.catch(() => kept.delete(version));
  return laid;
}

/** Larger graphs are not laid out as finely: what elk does for them takes minutes. */
const FINE_MAX = 800;

async function compute(shape: Shape): Promise<Laid> {
  return shape.tasks.length > FINE_MAX ? inLayers(shape) : byElk(shape);
}

/** Every task one layer behind the last of what it needs, in the order of the graph. */
function inLayers({ tasks, edges }: Shape): Laid {
  const needs = new Map<string, number>(tasks.map((id) => [id, 0]));
  const after = new Map<string, string[]>(tasks.map((id) => [id, []]));
  for (const [from, to] of edges) {
    needs.set(to, (needs.get(to) ?? 0) + 1);
    after.get(from)?.push(to);
  }
  const nodes: Laid["nodes"] = new Map();
  let layer = tasks.filter((id) => !needs.get(id));
  let [x, height] = [0, 0];
  while (layer.length) {
    const next: string[] = [];
    layer.forEach((id, row) => {
      nodes.set(id, { x, y: row * (NODE.height + 18) });
      for (const to of after.get(id) ?? []) {
        const left = (needs.get(to) ?? 1) - 1;
        needs.set(to, left);
        if (!left) next.push(to);
      }
    });
    height = Math.max(height, layer.length * (NODE.height + 18));
    x += NODE.width + 44;
    layer = next;
  }
  return { nodes, width: x, height };
}

async function byElk({ tasks, edges }: Shape): Promise<Laid> {
  elk ??= new ELK({ workerUrl, workerFactory: (url) => new Worker(url ?? workerUrl) });
  const graph: ElkNode = {
    id: "root",
    layoutOptions: {
      "elk.algorithm": "layered",
      "elk.direction": "RIGHT",
      "elk.layered.spacing.nodeNodeBetweenLayers": "44",
      "elk.spacing.nodeNode": "18",
      "elk.layered.nodePlacement.strategy": tasks.length > 500 ? "SIMPLE" : "NETWORK_SIMPLEX",
      "elk.layered.considerModelOrder.strategy": "NODES_AND_EDGES",
    },
    children: tasks.map((id) => ({ id, ...NODE })),
    edges: edges.map(([from, to], index) => ({ id: `e${index}`, sources: [from], targets: [to] })),
  };
  const laid = await elk.layout(graph);
  return {
    nodes: new Map((laid.children ?? []).map((node) => [node.id, { x: node.x ?? 0, y: node.y ?? 0 }])),
    width: laid.width ?? 0,
    height: laid.height ?? 0,
  };
}
