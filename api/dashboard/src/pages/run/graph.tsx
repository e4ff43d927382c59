// The published graph, with how each task stands. States change colours, never positions.
import { Background, Controls, Handle, MiniMap, Position, ReactFlow, type Edge, type Node, type NodeProps } from "@xyflow/react";
import "@xyflow/react/dist/style.css";
import { memo, useEffect, useMemo, useState } from "react";
import type { Schemas } from "../../api/client";
import { useVersion, type Spans } from "../../api/hooks";
import { usePrefs } from "../../prefs";
import { Icon, type IconName } from "../../ui/icons";
import { length } from "../../ui/instant";
import { Failure, Loading } from "../../ui/parts";
import { StatusDot, toneOf } from "../../ui/status";
import { itemsWord, roundsWord } from "./items";
import { useParams } from "../../router";
import { layout, NODE, type Laid } from "./layout";
import { childOf, specsOf, type Spec } from "./spec";
import { sharedStart, stack } from "./stack";
import { bodyMs } from "./tasks";

/** The small map draws every box. */
const MAPPED_MAX = 1500;

type TaskNode = Node<{ name: string; tasks: string[]; status: string; more: string; icon: IconName | null; join: string; undo: string; hasNeeds: boolean }, "task">;

export function RunGraph({ run, spans, selected, onSelect }: { run: Schemas["Run"]; spans: Spans | undefined; selected: string; onSelect: (task: string) => void }) {
  const version = useVersion(run.workflow, run.version);
  if (version.error) return <Failure error={version.error} />;
  if (!version.data) return <Loading />;
  return <Graph id={`${run.workflow} ${run.version}`} definition={version.data.definition} spans={spans} selected={selected} onSelect={onSelect} />;
}

export function Graph({ id, definition, spans, selected, onSelect }: { id: string; definition: unknown; spans?: Spans | undefined; selected?: string; onSelect?: (task: string) => void }) {
  const { theme } = usePrefs();
  const specs = useMemo(() => specsOf(definition), [definition]);
  const { boxes, edges } = useMemo(() => stack(specs), [specs]);
  const [, setPlace] = useParams([]);
  const [laid, setLaid] = useState<Laid | null>(null);
  const [error, setError] = useState<unknown>(null);
  useEffect(() => {
    let isCurrent = true;
    layout(id, { tasks: boxes.map((box) => box.id), edges }).then((found) => isCurrent && setLaid(found), (e: unknown) => isCurrent && setError(e));
    return () => {
      isCurrent = false;
    };
  }, [id, boxes, edges]);
  const standing = useMemo(() => new Map(spans?.tasks.map((task) => [task.name, task])), [spans]);
  const nodes = useMemo<TaskNode[]>(() => {
    if (!laid) return [];
    return boxes.map(({ id: name, tasks, spec }) => {
      const isStack = tasks.length > 1;
      const task = isStack ? undefined : standing.get(name);
      const counts = isStack ? countOf(tasks, standing) : undefined;
      const status = task?.status ?? counts?.status;
      const shown = isStack ? `${name} … ${tasks.at(-1) ?? ""}` : name;
      return {
        id: name,
        type: "task",
        position: laid.nodes.get(name) ?? { x: 0, y: 0 },
        width: NODE.width,
        height: NODE.height,
        selected: selected !== undefined && selected !== "" && (isStack ? tasks.includes(selected) : selected === name),
        ariaLabel: isStack ? `${tasks.length} tasks, ${shown}, ${counts?.word ?? ""}` : `task ${name}, ${status ?? "not run"}`,
        data: {
          name: shown,
          status: status ?? "",
          more: counts?.word ?? describe(spec, task),
          tasks,
          icon: spec.approval ? "person" : spec.wait ? "clock" : spec.signal ? "triggers" : spec.workflow ? "workflows" : spec.map ? "runs" : spec.repeat ? "replay" : null,
          join: joinWord(spec),
          undo: task?.compensation ?? (spec.compensate ? "none" : ""),
          hasNeeds: Boolean(spec.needs?.length),
        },
      };
    });
  }, [laid, boxes, standing, selected]);
  const lines = useMemo<Edge[]>(
    () =>
      edges.map(([from, to], index) => {
        const [a, b] = [standing.get(from), standing.get(to)]; // of stacks their first tasks stand for all
        const isTaken = Boolean(a && b && b.token && (a.status === "completed" || a.status === "failed"));
        const isNot = [a, b].some((task) => task?.status === "skipped" || task?.status === "cancelled");
        return { id: `e${index}`, source: from, target: to, className: isTaken ? "taken" : isNot ? "not-taken" : undefined, focusable: false, animated: b?.status === "running" || b?.status === "queued" };
      }),
    [edges, standing],
  );
  if (error) return <Failure error={error} />;
  if (!laid) return <Loading />;
  return (
    <div className="graph">
      <ReactFlow
        nodes={nodes}
        edges={lines}
        nodeTypes={NODE_TYPES}
        colorMode={theme}
        fitView
        fitViewOptions={{ padding: 0.06, maxZoom: 1.15 }}
        minZoom={0.05}
        maxZoom={1.6}
        nodesDraggable={false}
        nodesConnectable={false}
        edgesFocusable={false}
        deleteKeyCode={null}
        onlyRenderVisibleElements={nodes.length > 300}
        proOptions={{ hideAttribution: false }}
        onNodeClick={(_, node) => onSelect && (node.data.tasks.length > 1 ? setPlace({ tab: "tasks", find: sharedStart(node.data.tasks) }) : onSelect(node.id))}
        onPaneClick={() => onSelect?.("")}
      >
        <Background gap={20} size={1} />
        <Controls showInteractive={false} />
        {nodes.length > 12 && nodes.length <= MAPPED_MAX && <MiniMap pannable zoomable nodeClassName={(node: TaskNode) => `map-${toneOf(node.data.status)}`} />}
      </ReactFlow>
    </div>
  );
}

function describe(spec: Spec, task: Schemas["TaskSpans"] | undefined): string {
  const signal = typeof spec.signal === "string" ? spec.signal : spec.signal?.name;
  const what = signal ? `signal ${signal}` : spec.workflow ? `workflow ${childOf(spec) ?? ""}` : spec.wait ? (spec.wait.for ? `waits ${spec.wait.for}` : "waits until an instant") : spec.approval && !spec.run ? "approval" : (spec.run ?? "");
  if (task?.items) return itemsWord(task.items);
  if (spec.repeat) return task?.token ? `${roundsWord(task, spec.repeat.max)}` : `${what}, up to ${spec.repeat.max ?? "?"} rounds`;
  if (!task?.token) return what;
  const took = bodyMs(task);
  const tries = task.attempt > 1 ? `, attempt ${task.attempt}` : "";
  return task.spans.length ? `${length(took)}${tries}` : `${what}${tries}`;
}

/** Of a stack: how far it is, and the status that most needs somebody. */
function countOf(tasks: string[], standing: Map<string, Schemas["TaskSpans"]>): { word: string; status: string } {
  const counts = new Map<string, number>();
  for (const name of tasks) {
    const status = standing.get(name)?.status ?? "";
    counts.set(status, (counts.get(status) ?? 0) + 1);
  }
  const [ok, failed] = [counts.get("completed") ?? 0, counts.get("failed") ?? 0];
  const status = ["failed", "waiting", "running", "queued", "pending", "cancelled", "skipped", "completed"].find((each) => counts.has(each)) ?? "";
  return { word: status ? itemsWord({ total: tasks.length, begun: 0, completed: ok, failed }) : `${tasks.length} tasks`, status };
}

function joinWord(spec: Spec): string {
  const parts = [];
  if ((spec.needs?.length ?? 0) > 0 && spec.join !== undefined && spec.join !== "all") parts.push(typeof spec.join === "number" ? `${spec.join} of ${spec.needs?.length ?? 0}` : spec.join.replace("_", " "));
  if (spec.if) parts.push("if");
  return parts.join(" · ");
}

const TaskBox = memo(({ data, selected }: NodeProps<TaskNode>) => (
  <div className={`graph-node tone-${data.status ? toneOf(data.status) : "idle"} is-${data.status}${selected ? " selected" : ""}`}>
    {data.hasNeeds && <Handle type="target" position={Position.Left} isConnectable={false} />}
    {data.undo && <span className={`graph-undo tone-${data.undo === "none" ? "idle" : toneOf(data.undo)}`} title={data.undo === "none" ? "can be undone" : `undone: ${data.undo}`}><Icon name="undo" size={11} /><span className="sr-only">{data.undo === "none" ? "can be undone" : `undone: ${data.undo}`}</span></span>}
    {data.join && <span className="graph-join">{data.join}</span>}
    <span className="graph-name">
      {data.status ? <StatusDot of={data.status} /> : data.icon ? <Icon name={data.icon} size={13} /> : null}
      <span className="clip">{data.name}</span>
      {data.status && data.icon && <Icon name={data.icon} size={12} className="faint" />}
    </span>
    <span className="graph-more clip">{data.more}</span>
    <Handle type="source" position={Position.Right} isConnectable={false} />
  </div>
));
TaskBox.displayName = "TaskBox";

const NODE_TYPES = { task: TaskBox };
