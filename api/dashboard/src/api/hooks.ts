// What pages read. Keys begin with the noun, so that news can say which of them are old.
import { keepPreviousData, useInfiniteQuery, useQuery, useQueryClient, type InfiniteData, type Query, type UseInfiniteQueryResult } from "@tanstack/react-query";
import { useEffect, useMemo, useRef } from "react";
import { noteServerClock } from "../ui/instant";
import { get, type Schemas } from "./client";
import { useLive } from "./live";
import { isSlow, patience } from "./long";

/** Without a stream the pages look for themselves. */
const POLL_MS = 3000;
const SLOW_MS = 10_000;
const JUST_MS = 500;

function usePoll(withStream: number | false = SLOW_MS): number | false {
  const { open, paused } = useLive();
  if (paused) return false;
  return open ? withStream : POLL_MS;
}

export const isOver = (status: string): boolean => ["completed", "failed", "cancelled", "terminated", "compensated", "compensation_failed"].includes(status);
export const isTaskOver = (status: string): boolean => isOver(status) || status === "skipped";

export function useOverview() {
  return useQuery({
    queryKey: ["overview"],
    queryFn: async ({ signal }) => {
      const overview = await get("/overview", {}, {}, signal);
      noteServerClock(overview.at);
      return overview;
    },
    refetchInterval: usePoll(5000),
    placeholderData: keepPreviousData,
  });
}

const BUSY_LOOKS = 10;
const BUSY_FACTOR = 2;

/**
 * The stream tells of the newest open runs only, so an open one is looked at every second; all else of it only when it has moved. One that has moved at
 * every look for a while is looked at more rarely: nobody follows it step by step.
 */
export function useRun(id: string) {
  const poll = usePoll(1000);
  const client = useQueryClient();
  const moves = useRef(0);
  const query = useQuery({
    queryKey: ["run", id, "itself"],
    queryFn: async ({ signal, queryKey }) => {
      const before = client.getQueryData<Schemas["Run"]>(queryKey)?.row_version;
      const run = await get("/runs/{run_id}", { run_id: id }, {}, signal);
      moves.current = run.row_version === before ? 0 : moves.current + 1;
      return run;
    },
    refetchInterval: ({ state }) => (state.data && isOver(state.data.status) ? SLOW_MS : poll && (moves.current > BUSY_LOOKS ? BUSY_FACTOR * poll : poll)),
  });
  const moved = query.data?.row_version;
  const known = useRef(moved);
  useEffect(() => {
    if (moved !== undefined && known.current !== undefined && moved !== known.current) {
      // The stream may have said so as well: what is being read again, or has just been, is left alone.
      const isOld = (each: Query) => each.queryKey[0] === "run" && each.queryKey[1] === id && each.queryKey[2] !== "itself" && !isSlow(each) && Date.now() - each.state.dataUpdatedAt > JUST_MS;
      void client.invalidateQueries({ predicate: isOld }, { cancelRefetch: false });
    }
    known.current = moved;
  }, [client, id, moved]);
  return query;
}

export function useExplain(id: string, task?: string) {
  return useQuery({
    queryKey: ["run", id, "explain", task ?? ""],
    queryFn: async ({ signal }) => {
      const answer = task
        ? await get("/tasks/{task_id}/explain", { task_id: `${id}.${task}` }, {}, signal)
        : await get("/runs/{run_id}/explain", { run_id: id }, {}, signal);
      noteServerClock(answer.at);
      return answer;
    },
    refetchInterval: usePoll(5000),
    placeholderData: keepPreviousData,
    enabled: Boolean(id),
  });
}

export interface Spans {
  at: string;
  total: number;
  tasks: Schemas["TaskSpans"][];
  /** The instant up to which all of it is known, and when all of it was read. */
  since: string;
  readAt: number;
}

/** What changed is asked for until then; then all of it, since a change whose transaction took long may have been missed. */
const READ_ALL_MS = 30_000;

export function useSpans(id: string, version: number | undefined, isLive: boolean) {
  const poll = usePoll(5000);
  const client = useQueryClient();
  return useQuery({
    queryKey: ["run", id, "spans", version],
    queryFn: async ({ signal, queryKey }): Promise<Spans> => {
      const known = client.getQueryData<Spans>(queryKey);
      const isWhole = !known || !isLive || known.tasks.length < known.total || Date.now() - known.readAt > READ_ALL_MS;
      const readAt = isWhole ? Date.now() : known.readAt;
      let [tasks, since]: [Schemas["TaskSpans"][], string | undefined] = [isWhole ? [] : [...known.tasks], undefined];
      for (let page: string | null = null; ; ) {
        const answer: Schemas["SpanPage"] = await get("/runs/{run_id}/spans", { run_id: id }, { ...(page ? { page } : {}), ...(isWhole ? {} : { since: known.since }) }, signal);
        since ??= answer.at;
        if (isWhole) tasks.push(...answer.items);
        else for (const task of answer.items) tasks[task.index] = task;
        noteServerClock(answer.at);
        const { at, total, next } = answer;
        if (!next) return { at, total, tasks, since, readAt };
        // The first tasks are worth looking at while the others of ten thousand come.
        if (!known) client.setQueryData<Spans>(queryKey, { at, total, tasks: (tasks = [...tasks]), since, readAt });
        page = next;
      }
    },
    refetchInterval: isLive ? poll : false,
    placeholderData: keepPreviousData,
    enabled: version !== undefined,
  });
}

export function useTask(id: string, task: string) {
  return useQuery({
    queryKey: ["run", id, "task", task],
    queryFn: ({ signal }) => get("/tasks/{task_id}", { task_id: `${id}.${task}` }, {}, signal),
    refetchInterval: usePoll(5000),
  });
}

export function useAttempts(id: string, task: string) {
  return useQuery({
    queryKey: ["run", id, "attempts", task],
    queryFn: ({ signal }) => get("/tasks/{task_id}/attempts", { task_id: `${id}.${task}` }, { limit: 200 }, signal),
    refetchInterval: usePoll(),
  });
}

/** Who asked for a run, and what its tasks have asked for. */
export function useRelations(id: string) {
  const poll = usePoll(5000);
  const query = useInfiniteQuery({
    queryKey: ["run", id, "relations"],
    queryFn: ({ pageParam, signal }) => get("/runs/{run_id}/relations", { run_id: id }, { limit: 200, ...(pageParam ? { page: pageParam } : {}) }, signal),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.next ?? undefined,
    refetchInterval: poll,
  });
  const data = useMemo(() => query.data && { parent: query.data.pages[0]?.parent ?? null, children: query.data.pages.flatMap((page) => page.items) }, [query.data]);
  return { data, error: query.error, more: query.hasNextPage, fetchMore: () => void query.fetchNextPage() };
}

export function useVersion(workflow: string, version: number | undefined) {
  return useQuery({
    queryKey: ["version", workflow, version],
    queryFn: ({ signal }) => get("/workflows/{workflow}/versions/{version}", { workflow, version: version ?? 0 }, {}, signal),
    enabled: Boolean(workflow && version),
    staleTime: Infinity, // a version never changes
  });
}

export function useWorkflow(workflow: string) {
  return useQuery({ queryKey: ["workflow", workflow], queryFn: ({ signal }) => get("/workflows/{workflow}", { workflow }, {}, signal), enabled: Boolean(workflow) });
}

export function useWorkflows() {
  return useQuery({ queryKey: ["workflows"], queryFn: ({ signal }) => get("/workflows", {}, { limit: 200 }, signal), refetchInterval: usePoll() });
}

export function usePauses() {
  const poll = usePoll(5000);
  return useQuery({
    queryKey: ["pauses"],
    queryFn: async ({ signal }) => {
      const [workflows, queues] = await Promise.all([get("/pauses", {}, { limit: 200 }, signal), get("/queues/pauses", {}, {}, signal)]);
      return { workflows: workflows.items, queues: queues.items };
    },
    refetchInterval: poll,
    placeholderData: keepPreviousData,
  });
}

interface Paged<T> {
  items: T[];
  next: string | null;
}

export interface Listed<T> {
  rows: T[];
  more: boolean;
  fetchMore: () => void;
  query: UseInfiniteQueryResult<InfiniteData<Paged<T>>>;
}

/** A list by key, page after page. */
export function useList<T>(key: unknown[], read: (page: string | undefined, signal: AbortSignal) => Promise<Paged<T>>, options: { live?: number | false; enabled?: boolean } = {}): Listed<T> {
  const poll = usePoll(options.live ?? SLOW_MS);
  const query = useInfiniteQuery({
    queryKey: key,
    queryFn: ({ pageParam, signal }) => read(pageParam, signal),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page: Paged<T>) => page.next ?? undefined,
    refetchInterval: (query) => (options.live === false || poll === false ? false : poll * patience(query as unknown as Query)),
    placeholderData: keepPreviousData,
    enabled: options.enabled ?? true,
  });
  const rows = useMemo(() => query.data?.pages.flatMap((page) => page.items) ?? [], [query.data]);
  return {
    rows,
    more: query.hasNextPage,
    fetchMore: () => {
      if (!query.isFetchingNextPage) void query.fetchNextPage();
    },
    query,
  };
}

export const shortId = (workflow: string, id: string): string => `${workflow}-${id.slice(-6)}`;
