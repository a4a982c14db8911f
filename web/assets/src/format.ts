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

const good = new Set(["connected", "established", "up", "active", "running", "done", "applied"]);
const wait = new Set(["connecting", "reconnecting", "active_connect", "passive_wait", "init", "closing", "proposed"]);

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
    case "ago": {
      const t = document.createElement("time");
      if (typeof v !== "number") {
        el.textContent = "never";
        return;
      }
      t.className = "ago";
      t.dateTime = new Date(v).toISOString();
      t.title = utc(v);
      t.textContent = span(Date.now() - v) + " ago";
      el.replaceChildren(t);
      return;
    }
    case "state": {
      const outer = document.createElement("span");
      const mark = document.createElement("span");
      mark.setAttribute("aria-hidden", "true");
      const kind = good.has(text) ? "good" : wait.has(text) ? "wait" : "bad";
      outer.className = "state " + kind;
      mark.textContent = kind === "good" ? "●" : kind === "wait" ? "◐" : "○";
      outer.append(mark, " " + text);
      el.replaceChildren(outer);
      return;
    }
    default:
      el.textContent = text;
  }
}
