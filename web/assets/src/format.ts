// The formats of the server's tables, under the same names (web/format.go).

export type Value = string | number | boolean | null | undefined;

export function count(v: number): string {
  const s = String(Math.trunc(v));
  return s.replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f");
}

export function bytes(v: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  while (v >= 1024 && i < units.length - 1) {
    v /= 1024;
    i++;
  }
  return `${i === 0 ? v.toFixed(0) : v.toFixed(1)} ${units[i]}`;
}

export function span(ms: number): string {
  const s = ms / 1000;
  if (s < 0) return "now";
  if (s < 60) return `${Math.floor(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 48 * 3600) return `${Math.floor(s / 3600)} h`;
  return `${Math.floor(s / 86400)} d`;
}

export function utc(ms: number): string {
  return new Date(ms).toISOString().replace("T", " ").replace(/\.\d+Z$/, " UTC");
}

const good = new Set(["connected", "established", "up", "active", "running", "done", "applied", "confirmed"]);
const wait = new Set(["connecting", "reconnecting", "active_connect", "passive_wait", "init", "closing", "proposed", "rolled back"]);

const marks: Record<string, string> = { error: "✕ error", warning: "▲ warning", info: "· info" };
const verdicts: Record<string, string> = { well: "● well", warning: "▲ look", error: "✕ not well" };

export function local(ms: number): string {
  return new Date(ms).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
}

function time(ms: number, text: string, cls: string): HTMLTimeElement {
  const t = document.createElement("time");
  t.className = cls;
  t.dateTime = new Date(ms).toISOString();
  t.title = utc(ms);
  t.textContent = text;
  return t;
}

// show puts a value into an element as its data-f says.
export function show(el: HTMLElement, v: Value): void {
  const text = v === null || v === undefined ? "" : String(v);
  switch (el.dataset.f) {
    case "count":
      el.textContent = count(Number(v));
      return;
    case "bytes":
      el.textContent = bytes(Number(v));
      return;
    case "ago":
      if (typeof v === "number") el.replaceChildren(time(v, span(Date.now() - v) + " ago", "ago"));
      else el.textContent = "never";
      return;
    case "moment":
      el.replaceChildren(time(Number(v), local(Number(v)), ""));
      return;
    case "since":
      if (typeof v === "number") el.replaceChildren("since ", time(v, local(v), ""));
      else el.textContent = "";
      return;
    case "severity":
      el.replaceChildren(word("sev " + text, marks[text] ?? text));
      return;
    case "verdict":
      el.className = "sum " + text;
      el.textContent = verdicts[text] ?? text;
      return;
    case "state": {
      const kind = good.has(text) ? "good" : wait.has(text) ? "wait" : "bad";
      const outer = word("state " + kind, "");
      const mark = word("", kind === "good" ? "●" : kind === "wait" ? "◐" : "○");
      mark.setAttribute("aria-hidden", "true");
      outer.append(mark, " " + text);
      el.replaceChildren(outer);
      return;
    }
    default:
      if (el.textContent !== text) el.textContent = text;
  }
}

function word(cls: string, text: string): HTMLElement {
  const e = document.createElement("span");
  e.className = cls;
  e.textContent = text;
  return e;
}
