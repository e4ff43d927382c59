// Long tables: only the rows in view are in the page. Rows have one height, and can be walked with the keyboard.
import { flexRender, getCoreRowModel, getSortedRowModel, useReactTable, type ColumnDef, type SortingState } from "@tanstack/react-table";
import { useVirtualizer } from "@tanstack/react-virtual";
import { useEffect, useRef, useState, type KeyboardEvent, type ReactNode } from "react";
import { usePrefs } from "../prefs";
import { Icon } from "./icons";

export interface Column<T> {
  id: string;
  head: string;
  cell: (row: T) => ReactNode;
  /** A CSS track, such as `120px` or `minmax(160px, 2fr)`. */
  width: string;
  sort?: (row: T) => string | number;
  right?: boolean;
}

export function DataTable<T>({ rows, columns, keyOf, onOpen, selected, label, more, onMore, empty, sort, height }: {
  rows: T[];
  columns: Column<T>[];
  keyOf: (row: T) => string;
  onOpen?: (row: T) => void;
  selected?: string | null;
  label: string;
  /** There are further rows, which `onMore` fetches when the end comes into view. */
  more?: boolean;
  onMore?: () => void;
  empty?: ReactNode;
  sort?: SortingState;
  /** Rows at most before it scrolls by itself; without, it fills what its parent leaves. */
  height?: number;
}) {
  const { density } = usePrefs();
  const rowHeight = density === "dense" ? 27 : 34;
  const [sorting, setSorting] = useState<SortingState>(sort ?? []);
  const defs: ColumnDef<T>[] = columns.map((column) => ({
    id: column.id,
    header: column.head,
    cell: (context) => column.cell(context.row.original),
    accessorFn: column.sort ?? (() => ""),
    enableSorting: Boolean(column.sort),
  }));
  const table = useReactTable({
    data: rows,
    columns: defs,
    state: { sorting },
    onSortingChange: setSorting,
    getCoreRowModel: getCoreRowModel(),
    getSortedRowModel: getSortedRowModel(),
    getRowId: keyOf,
  });
  const model = table.getRowModel().rows;
  const scroll = useRef<HTMLDivElement>(null);
  const virtual = useVirtualizer({
    count: model.length,
    getScrollElement: () => scroll.current,
    estimateSize: () => rowHeight,
    overscan: 12,
    initialRect: { width: 1000, height: 800 },
  });
  useEffect(() => virtual.measure(), [virtual, rowHeight]);
  const items = virtual.getVirtualItems();
  const last = items.at(-1)?.index ?? -1;
  useEffect(() => {
    if (more && onMore && last >= model.length - 20) onMore();
  }, [more, onMore, last, model.length]);

  const tracks = columns.map((column) => column.width).join(" ");
  const walk = (event: KeyboardEvent<HTMLElement>, index: number, row: T) => {
    if (event.target !== event.currentTarget) return;
    const step = event.key === "ArrowDown" || event.key === "j" ? 1 : event.key === "ArrowUp" || event.key === "k" ? -1 : 0;
    if (step) {
      event.preventDefault();
      virtual.scrollToIndex(Math.max(0, Math.min(model.length - 1, index + step)));
      requestAnimationFrame(() => scroll.current?.querySelector<HTMLElement>(`[data-index="${index + step}"]`)?.focus());
    } else if (event.key === "Enter" && onOpen) onOpen(row);
  };

  if (!rows.length && empty) return <>{empty}</>;
  return (
    <div className={height ? "table-scroll own-height" : "table-scroll"} ref={scroll} style={height ? { maxHeight: (height + 1) * rowHeight } : undefined} tabIndex={0} role="group" aria-label={label}>
      <div className="table" role="table" aria-label={label} aria-rowcount={more ? -1 : model.length + 1}>
        <div className="table-head" role="row" style={{ gridTemplateColumns: tracks }}>
          {table.getFlatHeaders().map((header, index) => {
            const column = columns[index];
            const order = header.column.getIsSorted();
            const head = flexRender(header.column.columnDef.header, header.getContext());
            return (
              <div key={header.id} role="columnheader" className={column?.right ? "right" : undefined} aria-sort={order === "asc" ? "ascending" : order === "desc" ? "descending" : undefined}>
                {header.column.getCanSort() ? (
                  <button type="button" onClick={header.column.getToggleSortingHandler()}>
                    {head}
                    {order && <Icon name="down" size={10} className={order === "asc" ? "flip" : undefined} />}
                  </button>
                ) : (
                  head
                )}
              </div>
            );
          })}
        </div>
        <div className="table-body" role="rowgroup" style={{ height: virtual.getTotalSize() }}>
          {items.map((item) => {
            const row = model[item.index];
            if (!row) return null;
            return (
              <div
                key={row.id}
                role="row"
                className={`table-row${selected === row.id ? " selected" : ""}${onOpen ? " opens" : ""}`}
                data-index={item.index}
                data-row={row.id}
                aria-rowindex={item.index + 2}
                aria-selected={selected === undefined ? undefined : selected === row.id}
                tabIndex={onOpen ? (item.index === 0 ? 0 : -1) : undefined}
                style={{ gridTemplateColumns: tracks, height: rowHeight, transform: `translateY(${item.start}px)` }}
                onClick={onOpen && (() => { if (!getSelection()?.toString()) onOpen(row.original); })}
                onKeyDown={(event) => walk(event, item.index, row.original)}
              >
                {row.getVisibleCells().map((cell, index) => (
                  <div key={cell.id} role="cell" className={columns[index]?.right ? "right" : undefined}>
                    {flexRender(cell.column.columnDef.cell, cell.getContext())}
                  </div>
                ))}
              </div>
            );
          })}
        </div>
      </div>
      {more && <div className="table-more">more …</div>}
    </div>
  );
}
