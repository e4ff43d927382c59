// Lists of which many pages were read: each page is read again, so they look more rarely and do not follow every change.
import type { InfiniteData, Query } from "@tanstack/react-query";

const SHORT_PAGES = 3;

const pagesOf = ({ state }: Query): number => (state.data as Partial<InfiniteData<unknown>> | undefined)?.pages?.length ?? 1;

/** Nor does what a run has to do with others, which changes seldom: `relations`. */
export const isSlow = (query: Query): boolean => query.queryKey[2] === "relations" || pagesOf(query) > SHORT_PAGES;

/** So many times as long it waits between two looks. */
export const patience = (query: Query): number => Math.ceil(pagesOf(query) / SHORT_PAGES);
