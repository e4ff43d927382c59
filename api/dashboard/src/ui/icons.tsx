// Icons drawn for the console: 16 × 16, one stroke, so that they read at the size of the text.
const PATHS = {
  overview: "M2.5 8.500 8 3l5.500 5.500M4 7.500V13h8V7.500",
  runs: "M2.500 4h11M2.500 8h7M2.500 12h9",
  approvals: "M8 2.500a2.600 2.600 0 1 1 0 5.200 2.600 2.600 0 0 1 0-5.200ZM3 13.500c.4-2.600 2.300-4 5-4 1 0 1.900.2 2.600.6M10.500 12.200l1.400 1.400 2.300-2.700",
  letters: "M2.500 4.500h11v7.500h-11zM2.500 5l5.500 4 5.500-4M6 14h4",
  workflows: "M5.500 3.500h-3v3h3zM13.500 3.500h-3v3h3zM9.500 10h-3v3h3zM5.500 5h5M4 6.500C4 9 6 8.500 6.500 10.500M12 6.500c0 2.500-2 2-2.500 4",
  triggers: "M8.800 2 3.800 9H8l-.8 5 5-7H8z",
  workers: "M3 3.500h10v4H3zM3 9h10v4H3zM5 5.500h.01M5 11h.01",
  system: "M2.500 8.500h2.700l1.500-4.500 2.600 8 1.600-3.500h2.600",
  play: "M5 3.500 12 8l-7 4.500z",
  pause: "M5.500 3.500v9M10.500 3.500v9",
  check: "M3.500 8.500 6.500 11.500 12.500 4.500",
  cross: "M4.500 4.500l7 7M11.500 4.500l-7 7",
  alert: "M8 2.800 14 13H2zM8 6.500v3M8 11.300v.01",
  clock: "M8 2.500a5.500 5.500 0 1 1 0 11 5.500 5.500 0 0 1 0-11ZM8 5v3.200l2 1.300",
  queued: "M3 5h10M3 8h10M3 11h6",
  person: "M8 2.800a2.500 2.500 0 1 1 0 5 2.500 2.500 0 0 1 0-5ZM3.500 13.500c.5-2.600 2.200-3.800 4.500-3.800s4 1.200 4.500 3.800",
  moon: "M12.800 9.600A5.200 5.200 0 1 1 6.400 3.200a4.200 4.200 0 0 0 6.400 6.400Z",
  sun: "M8 5.400a2.600 2.600 0 1 1 0 5.200 2.600 2.600 0 0 1 0-5.200ZM8 1.800v1.400M8 12.800v1.400M1.800 8h1.400M12.800 8h1.400M3.600 3.600l1 1M11.400 11.400l1 1M12.400 3.600l-1 1M4.600 11.400l-1 1",
  display: "M2.500 3.500h11v7.500h-11zM6 13.500h4M8 11v2.500",
  search: "M7 2.800a4.200 4.200 0 1 1 0 8.400 4.200 4.200 0 0 1 0-8.400ZM10.200 10.200l3.300 3.300",
  copy: "M5.500 5.500h7.500V13H5.500zM3 10.500V3h7.500",
  download: "M8 2.500v7M5 7l3 3 3-3M3 13h10",
  right: "M6 3.500 10.500 8 6 12.500",
  down: "M3.500 6 8 10.500 12.500 6",
  left: "M10 3.500 5.500 8l4.500 4.500",
  replay: "M3.500 8a4.500 4.500 0 1 0 1.500-3.400M3.200 2.800v2.600h2.600",
  skip: "M4 4l5 4-5 4zM11.500 4v8",
  stop: "M4 4h8v8H4z",
  dot: "M8 6.200a1.800 1.800 0 1 1 0 3.600 1.800 1.800 0 0 1 0-3.600Z",
  circle: "M8 3.500a4.500 4.500 0 1 1 0 9 4.500 4.500 0 0 1 0-9Z",
  ring: "M8 2.500a5.500 5.500 0 1 1-5.500 5.500",
  keyboard: "M2 4.500h12v7H2zM4.500 7h.01M7 7h.01M9.500 7h.01M11.700 7h.01M5.500 9.300h5",
  link: "M6.800 9.200 9.200 6.800M7 4.800l1.300-1.300a2.600 2.600 0 0 1 3.700 3.700L10.700 8.500M9 11.200l-1.300 1.300A2.600 2.600 0 0 1 4 8.800l1.300-1.300",
  more: "M3.500 8h.01M8 8h.01M12.500 8h.01",
  plus: "M8 3.500v9M3.500 8h9",
  filter: "M2.500 3.500h11L9.500 8.500V13l-3-1.500v-3z",
  fold: "M3 8h3M10 8h3M6.500 5v6M9.500 5v6",
  dense: "M2.500 3.500h11M2.500 6.500h11M2.500 9.500h11M2.500 12.500h11",
  edit: "M3 13l.5-2.700L10.700 3l2.300 2.300-7.300 7.200zM9.300 4.400l2.300 2.300",
  trash: "M3 4.500h10M6 4.500V3h4v1.500M4.500 4.500l.6 8.500h5.800l.6-8.500",
  heart: "M2.500 8.500h2.700l1.500-4.500 2.600 8 1.600-3.500h2.600",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name, size = 16, className }: { name: IconName; size?: number; className?: string }) {
  const isFilled = name === "play" || name === "stop" || name === "dot";
  return (
    <svg
      className={`icon${className ? ` ${className}` : ""}`}
      width={size}
      height={size}
      viewBox="0 0 16 16"
      fill={isFilled ? "currentColor" : "none"}
      stroke="currentColor"
      strokeWidth={1.5}
      strokeLinecap="round"
      strokeLinejoin="round"
      aria-hidden="true"
      focusable="false"
    >
      <path d={PATHS[name]} />
    </svg>
  );
}
