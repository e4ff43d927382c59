// Addresses: everything that a page shows is in its address, so that a copied link shows the same to a colleague.
import { createContext, useCallback, useContext, useEffect, useMemo, useState, type MouseEvent, type ReactNode } from "react";

const BASE = "/console";

interface Place {
  path: string;
  query: URLSearchParams;
}

function here(): Place {
  const path = location.pathname.startsWith(BASE) ? location.pathname.slice(BASE.length) : location.pathname;
  return { path: path || "/", query: new URLSearchParams(location.search) };
}

const PlaceContext = createContext<Place>(here());

export function Router({ children }: { children: ReactNode }) {
  const [place, setPlace] = useState(here);
  useEffect(() => {
    const moved = () => setPlace(here());
    addEventListener("popstate", moved);
    addEventListener("headrace:moved", moved);
    return () => {
      removeEventListener("popstate", moved);
      removeEventListener("headrace:moved", moved);
    };
  }, []);
  return <PlaceContext.Provider value={place}>{children}</PlaceContext.Provider>;
}

export const usePlace = (): Place => useContext(PlaceContext);

export function go(to: string, { replace = false } = {}): void {
  const address = BASE + to;
  if (address === location.pathname + location.search) return;
  history[replace ? "replaceState" : "pushState"](null, "", address);
  dispatchEvent(new Event("headrace:moved"));
}

/** Named parts of a path such as `/runs/:id`; null when it does not match. */
export function match(pattern: string, path: string): Record<string, string> | null {
  const wanted = pattern.split("/");
  const given = path.replace(/\/$/, "").split("/");
  if (wanted.length !== given.length) return null;
  const found: Record<string, string> = {};
  for (const [index, part] of wanted.entries()) {
    const value = given[index] ?? "";
    if (part.startsWith(":")) {
      try {
        found[part.slice(1)] = decodeURIComponent(value);
      } catch {
        return null;
      }
    } else if (part !== value) return null;
  }
  return found;
}

/** One parameter of the address, and how to change it; a default is not written. */
export function useParam(name: string, otherwise = ""): [string, (value: string, options?: { push?: boolean }) => void] {
  const { query } = usePlace();
  const set = useCallback(
    (value: string, { push = false } = {}) => {
      const now = here();
      if (value && value !== otherwise) now.query.set(name, value);
      else now.query.delete(name);
      const text = now.query.toString();
      go(now.path + (text ? `?${text}` : ""), { replace: !push });
    },
    [name, otherwise],
  );
  return [query.get(name) ?? otherwise, set];
}

export function useParams(names: readonly string[]): [Record<string, string>, (change: Record<string, string>) => void] {
  const { query } = usePlace();
  const text = query.toString();
  const values = useMemo(() => {
    const given = new URLSearchParams(text);
    return Object.fromEntries(names.map((name) => [name, given.get(name) ?? ""]));
  }, [text, names]);
  const set = useCallback((change: Record<string, string>) => {
    const now = here();
    for (const [name, value] of Object.entries(change)) {
      if (value) now.query.set(name, value);
      else now.query.delete(name);
    }
    const written = now.query.toString();
    go(now.path + (written ? `?${written}` : ""), { replace: true });
  }, []);
  return [values, set];
}

export function Link({ to, className, children, title, label, current }: {
  to: string;
  className?: string;
  children: ReactNode;
  title?: string;
  label?: string;
  current?: boolean;
}) {
  const click = (event: MouseEvent) => {
    if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    go(to);
  };
  return (
    <a href={BASE + to} className={className} title={title} aria-label={label} aria-current={current ? "page" : undefined} onClick={click}>
      {children}
    </a>
  );
}

export function useTitle(title: string): void {
  useEffect(() => {
    document.title = title ? `${title} · Headrace` : "Headrace";
  }, [title]);
}
