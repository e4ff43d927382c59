import { useEffect, useId, useRef, useState, type KeyboardEvent, type ReactNode } from "react";
import { ApiError } from "../api/client";
import { Icon, type IconName } from "./icons";
import type { Tone } from "./status";

export function Button({ children, icon, onClick, kind = "plain", disabled, why, title, type = "button", small, label, pressed, autoFocus }: {
  children?: ReactNode;
  icon?: IconName;
  onClick?: () => void;
  kind?: "plain" | "primary" | "danger" | "quiet";
  disabled?: boolean;
  /** Why it cannot be pressed: it is shown disabled with this, and never hidden. */
  why?: string;
  title?: string;
  type?: "button" | "submit";
  small?: boolean;
  label?: string;
  pressed?: boolean;
  autoFocus?: boolean;
}) {
  const isOff = disabled || Boolean(why);
  return (
    <button
      type={type}
      className={`button ${kind}${small ? " small" : ""}${children ? "" : " only-icon"}`}
      onClick={isOff ? undefined : onClick}
      disabled={isOff && !why}
      aria-disabled={isOff || undefined}
      aria-label={label}
      aria-pressed={pressed}
      title={why ?? title ?? (children ? undefined : label)}
      autoFocus={autoFocus}
    >
      {icon && <Icon name={icon} size={14} />}
      {children && <span>{children}</span>}
    </button>
  );
}

export function Panel({ title, aside, children, flush, className, id }: {
  title?: ReactNode;
  aside?: ReactNode;
  children: ReactNode;
  flush?: boolean;
  className?: string;
  id?: string;
}) {
  return (
    <section className={`panel${className ? ` ${className}` : ""}`} id={id}>
      {title && (
        <header className="panel-head">
          <h2>{title}</h2>
          {aside && <div className="panel-aside">{aside}</div>}
        </header>
      )}
      <div className={flush ? "panel-body flush" : "panel-body"}>{children}</div>
    </section>
  );
}

export function Tabs({ tabs, current, onChange, label }: {
  tabs: { id: string; word: string; count?: number | string | undefined; tone?: Tone }[];
  current: string;
  onChange: (id: string) => void;
  label: string;
}) {
  const strip = useRef<HTMLDivElement>(null);
  const key = (event: KeyboardEvent) => {
    const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (!step) return;
    event.preventDefault();
    const index = tabs.findIndex((tab) => tab.id === current);
    const next = tabs[(index + step + tabs.length) % tabs.length];
    if (!next) return;
    onChange(next.id);
    strip.current?.querySelector<HTMLElement>(`[data-tab="${next.id}"]`)?.focus();
  };
  return (
    <div className="tabs" role="tablist" aria-label={label} ref={strip} onKeyDown={key}>
      {tabs.map((tab) => (
        <button
          key={tab.id}
          type="button"
          role="tab"
          id={`tab-${tab.id}`}
          data-tab={tab.id}
          aria-selected={tab.id === current}
          tabIndex={tab.id === current ? 0 : -1}
          onClick={() => onChange(tab.id)}
        >
          {tab.word}
          {tab.count !== undefined && <span className={`count${tab.tone ? ` tone-${tab.tone}` : ""}`}>{tab.count}</span>}
        </button>
      ))}
    </div>
  );
}

export function Segmented<T extends string>({ options, value, onChange, label }: {
  options: { value: T; word: ReactNode; title?: string }[];
  value: T;
  onChange: (value: T) => void;
  label: string;
}) {
  return (
    <div className="segmented" role="group" aria-label={label}>
      {options.map((option) => (
        <button key={option.value} type="button" aria-pressed={option.value === value} title={option.title} aria-label={typeof option.word === "string" ? undefined : option.title} onClick={() => onChange(option.value)}>
          {option.word}
        </button>
      ))}
    </div>
  );
}

export function Empty({ icon = "circle", title, children }: { icon?: IconName; title: string; children?: ReactNode }) {
  return (
    <div className="empty">
      <Icon name={icon} size={24} />
      <p className="empty-title">{title}</p>
      {children && <div className="empty-text">{children}</div>}
    </div>
  );
}

export function Failure({ error, retry }: { error: unknown; retry?: () => void }) {
  const isApi = error instanceof ApiError;
  return (
    <div className="failure" role="alert">
      <Icon name="alert" />
      <div>
        <p className="failure-title">
          {isApi && error.code && <code>{error.code}</code>} {error instanceof Error ? error.message : String(error)}
        </p>
        {isApi && error.problem.errors?.map((fault) => (
          <p key={fault.path + fault.message} className="muted">
            <code>{fault.path || "(all)"}</code> {fault.message}
          </p>
        ))}
        {isApi && error.problem.request_id && <p className="faint">request {error.problem.request_id}</p>}
      </div>
      {retry && <Button small icon="replay" onClick={retry}>Try again</Button>}
    </div>
  );
}

export function Loading({ rows = 6 }: { rows?: number }) {
  return (
    <div className="loading" role="status" aria-busy="true" aria-label="Loading">
      {Array.from({ length: rows }, (_, index) => (
        <div key={index} className="bone" />
      ))}
    </div>
  );
}

export function Copy({ text, label = "Copy" }: { text: string; label?: string }) {
  const [done, setDone] = useState(false);
  return (
    <button
      type="button"
      className="button quiet small only-icon copy"
      aria-label={done ? "Copied" : label}
      title={done ? "Copied" : label}
      onClick={() => {
        void navigator.clipboard?.writeText(text).then(() => {
          setDone(true);
          setTimeout(() => setDone(false), 1200);
        });
      }}
    >
      <Icon name={done ? "check" : "copy"} size={13} />
    </button>
  );
}

export function Facts({ items }: { items: [ReactNode, ReactNode][] }) {
  return (
    <dl className="facts">
      {items.map(([name, value], index) => (
        <div key={index}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

/** A window over the page that keeps the focus until it is closed. */
export function Dialog({ title, onClose, children, wide }: { title: ReactNode; onClose: () => void; children: ReactNode; wide?: boolean }) {
  const box = useRef<HTMLDialogElement>(null);
  const id = useId();
  useEffect(() => {
    const dialog = box.current;
    if (!dialog || dialog.open) return;
    dialog.showModal();
    // The browser would take the first thing that can be focused, which closes it.
    dialog.querySelector<HTMLElement>("input, textarea, select, .button.primary")?.focus();
  }, []);
  return (
    <dialog
      ref={box}
      className={wide ? "dialog wide" : "dialog"}
      aria-labelledby={id}
      onCancel={(event) => {
        event.preventDefault();
        onClose();
      }}
      onMouseDown={(event) => {
        if (event.target === box.current) onClose();
      }}
    >
      <div className="dialog-box">
        <header className="dialog-head">
          <h2 id={id}>{title}</h2>
          <Button kind="quiet" icon="cross" label="Close" onClick={onClose} />
        </header>
        {children}
      </div>
    </dialog>
  );
}

export function Notice({ tone, icon, children, act }: { tone: Tone; icon?: IconName; children: ReactNode; act?: ReactNode }) {
  return (
    <div className={`notice tone-${tone}`}>
      <Icon name={icon ?? (tone === "ok" ? "check" : "alert")} />
      <div className="notice-text">{children}</div>
      {act}
    </div>
  );
}

export function Field({ label, hint, error, children }: { label: ReactNode; hint?: ReactNode; error?: string | undefined; children: (id: string) => ReactNode }) {
  const id = useId();
  return (
    <div className={error ? "field wrong" : "field"}>
      <label htmlFor={id}>{label}</label>
      {children(id)}
      {error ? <p className="field-error">{error}</p> : hint ? <p className="field-hint">{hint}</p> : null}
    </div>
  );
}

/** Goes into the address when it is left alone for a moment, so that not every letter is a request. */
export function Typed({ name, value, onChange, isMain }: { name: string; value: string; onChange: (value: string) => void; isMain?: boolean }) {
  const [text, setText] = useState(value);
  useEffect(() => setText(value), [value]);
  useEffect(() => {
    if (text === value) return;
    const timer = setTimeout(() => onChange(text), 300);
    return () => clearTimeout(timer);
  }, [text, value, onChange]);
  return <input type="search" data-filter={isMain || undefined} placeholder={name} aria-label={name} value={text} onChange={(event) => setText(event.target.value)} />;
}
