// The live socket: one connection, a subscription for each live table, and the mark that says how live
// the page is.

import { show, span, Value } from "./format";

type Row = Record<string, Value>;

interface Full { op: "full"; id: string; seq: number; total: number; rows: Row[] }
interface Patch { op: "patch"; id: string; seq: number; total: number; upsert?: Row[]; remove?: string[]; order?: string[] }
interface Failure { op: "error"; id: string; message: string }
type Frame = Full | Patch | Failure;

const mark = () => document.getElementById("live");

class Table {
  private keys = new Map<string, HTMLElement>();

  constructor(readonly id: string, readonly el: HTMLElement) {}

  get view(): string { return this.el.dataset.live ?? ""; }
  private get fixed(): boolean { return this.el.dataset.fixed === "yes" || this.el.tagName !== "TABLE" || this.view === "nets"; }

  subscribe(): string {
    return JSON.stringify({
      op: "subscribe", view: this.view, id: this.id, filter: this.el.dataset.filter ?? "", sort: this.el.dataset.sort ?? "",
      offset: Number(this.el.dataset.offset ?? 0), limit: this.fixed ? 1000 : Number(this.el.dataset.limit ?? 100), rate_hz: 2,
    });
  }

  private body(): HTMLElement { return this.el.querySelector("tbody") ?? this.el; }

  // find gives the element of a row: what the server rendered, or a clone of its template.
  private find(key: string): HTMLElement | undefined {
    let el = this.keys.get(key);
    if (el?.isConnected) return el;
    el = this.el.dataset.key === key ? this.el : this.el.querySelector<HTMLElement>(`[data-key="${CSS.escape(key)}"]`) ?? undefined;
    if (!el && !this.fixed) {
      const t = document.querySelector<HTMLTemplateElement>(`template[data-row="${this.view}"]`);
      el = (t?.content.firstElementChild?.cloneNode(true) ?? undefined) as HTMLElement | undefined;
      if (el) {
        el.dataset.key = key;
        this.body().append(el);
      }
    }
    if (el) this.keys.set(key, el);
    return el;
  }

  private fill(el: HTMLElement, row: Row): void {
    for (const cell of el.querySelectorAll<HTMLElement>("[data-field]")) {
      const name = cell.dataset.field ?? "";
      if (name in row) show(cell, row[name]);
    }
    for (const m of el.querySelectorAll<HTMLMeterElement>("meter[data-value]")) {
      const max = row[m.dataset.max ?? ""], value = row[m.dataset.value ?? ""];
      if (typeof max === "number") { m.max = max; if (!m.classList.contains("fill")) m.low = Math.ceil(max / 4); }
      if (typeof value === "number") m.value = value;
    }
    const link = el.querySelector<HTMLAnchorElement>("a[data-field=nid]");
    const peer = row.peer ?? (this.view === "peers" ? row.id : undefined);
    if (link && typeof peer === "string") link.href = "/peers/" + encodeURIComponent(peer);
  }

  full(f: Full): void {
    if (!this.fixed) {
      const keep = new Set(f.rows.map((r) => String(r.id)));
      for (const el of [...this.body().children] as HTMLElement[]) {
        if (!keep.has(el.dataset.key ?? "")) el.remove();
      }
    }
    for (const row of f.rows) {
      const el = this.find(String(row.id));
      if (el) this.fill(el, row);
    }
    this.order(f.rows.map((r) => String(r.id)));
    this.total(f.total);
  }

  patch(p: Patch): void {
    for (const row of p.upsert ?? []) {
      const el = this.find(String(row.key));
      if (el) this.fill(el, row);
    }
    if (!this.fixed) {
      for (const key of p.remove ?? []) {
        this.find(key)?.remove();
        this.keys.delete(key);
      }
    }
    if (p.order) this.order(p.order);
    this.total(p.total);
  }

  private order(keys: string[]): void {
    if (this.fixed) return;
    const body = this.body();
    keys.forEach((key, i) => {
      const el = this.keys.get(key);
      if (el && body.children[i] !== el) body.insertBefore(el, body.children[i] ?? null);
    });
  }

  private total(n: number): void {
    const t = document.getElementById("total");
    if (t && !this.fixed) t.textContent = String(n);
  }
}

export function live(): void {
  const tables = [...document.querySelectorAll<HTMLElement>("[data-live]")].map((el, i) => new Table(`t${i}`, el));
  const state = mark();
  if (!state) return;
  if (tables.length === 0) {
    state.hidden = true;
    return;
  }
  let lastFrame = 0;
  let tries = 0;
  let socket: WebSocket | undefined;

  const say = (s: string, text: string) => {
    if (state.dataset.state !== s || state.textContent !== text) {
      state.dataset.state = s;
      state.textContent = text;
    }
  };
  const stale = () => lastFrame === 0 ? "" : `, stale since ${new Date(lastFrame).toLocaleTimeString()}`;

  const open = () => {
    const url = new URL("/api/v1/live", location.href);
    url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
    const s = new WebSocket(url, "o2ibd.live.v1");
    socket = s;
    s.onopen = () => {
      tries = 0;
      for (const t of tables) s.send(t.subscribe());
    };
    s.onmessage = (m) => {
      lastFrame = Date.now();
      say("live", "live");
      const f = JSON.parse(String(m.data)) as Frame;
      const t = tables.find((x) => x.id === f.id);
      if (!t) return;
      if (f.op === "full") t.full(f);
      else if (f.op === "patch") t.patch(f);
      else say("error", f.message);
    };
    s.onclose = (e) => {
      if (e.code === 1008) {
        say("error", e.reason || "closed by the appliance");
        if (e.reason.includes("session")) location.reload();
        return;
      }
      tries++;
      const wait = Math.min(15000, 300 * 2 ** tries) * (0.75 + Math.random() / 2);
      say("lost", `reconnecting${stale()}`);
      setTimeout(open, wait);
    };
  };
  say("lost", "connecting");
  open();
  // A socket that is open and silent is not live: the overview changes with every tick.
  setInterval(() => {
    if (socket?.readyState === WebSocket.OPEN && lastFrame > 0 && Date.now() - lastFrame > 10000) say("lost", `no news${stale()}`);
  }, 2000);
  setInterval(() => {
    for (const t of document.querySelectorAll<HTMLTimeElement>("time.ago")) t.textContent = span(Date.now() - Date.parse(t.dateTime)) + " ago";
  }, 5000);
}
