// One live view on the page: a table, a list, or figures. Rows are what the server rendered, or clones of
// its template, filled by field. A virtual table holds only the rows around what is seen.

import { show, Value } from "./format";

export type Row = Record<string, Value>;
export interface Full { op: "full"; id: string; seq: number; total: number; rows: Row[] }
export interface Patch { op: "patch"; id: string; seq: number; total: number; upsert?: Row[]; remove?: string[]; order?: string[] }

const overscan = 20; // rows above and below the window, also the step of its offset

export class Table {
  seq = 0;
  private rows = new Map<string, HTMLElement>();
  private readonly body: HTMLElement;
  private readonly fixed: boolean;
  private readonly template: HTMLTemplateElement | null;

  constructor(readonly id: string, readonly el: HTMLElement) {
    this.body = el.querySelector<HTMLElement>(":scope > tbody") ?? el;
    this.fixed = el.dataset.fixed === "yes";
    this.template = document.querySelector(`template[data-row="${el.dataset.row ?? el.dataset.live ?? ""}"]`);
  }

  subscribe(): string {
    const d = this.el.dataset;
    return JSON.stringify({
      op: "subscribe", view: d.live, id: this.id, filter: d.filter ?? "", sort: d.sort ?? "",
      offset: Number(d.offset ?? 0), limit: this.fixed ? 1000 : Number(d.limit ?? 100), rate_hz: 2,
    });
  }

  // find gives the element of a row, or makes it.
  private find(key: string): HTMLElement | undefined {
    let el = this.rows.get(key);
    if (el?.isConnected) return el;
    el = this.el.dataset.key === key ? this.el : this.el.querySelector<HTMLElement>(`[data-key="${CSS.escape(key)}"]`) ?? undefined;
    if (!el && !this.fixed && this.template) {
      el = this.template.content.firstElementChild!.cloneNode(true) as HTMLElement;
      el.dataset.key = key;
      this.body.append(el);
    }
    if (el) this.rows.set(key, el);
    return el;
  }

  private fill(row: Row, key: string): void {
    const el = this.find(key);
    if (!el) return;
    if (el.dataset.field && el.dataset.field in row) show(el, row[el.dataset.field]);
    for (const cell of el.querySelectorAll<HTMLElement>("[data-field]")) {
      const name = cell.dataset.field!;
      if (name in row) show(cell, row[name]);
    }
    for (const m of el.querySelectorAll<HTMLMeterElement>("meter[data-value]")) {
      const max = row[m.dataset.max!], value = row[m.dataset.value!];
      if (typeof max === "number") {
        m.max = max;
        if (!m.classList.contains("fill")) m.low = Math.ceil(max / 4);
      }
      if (typeof value === "number") m.value = value;
    }
    const peer = row.peer ?? (this.el.dataset.live === "peers" ? row.id : undefined);
    const link = el.querySelector<HTMLAnchorElement>("a[data-field=nid], a[data-peer]");
    if (link && typeof peer === "string") {
      if (peer) link.href = "/peers/" + encodeURIComponent(peer);
      else link.removeAttribute("href");
    }
    if (this.el.tagName === "UL" || this.el.tagName === "OL") {
      if (typeof row.severity === "string") el.classList.add(row.severity);
    }
  }

  full(f: Full): void {
    this.seq = f.seq;
    if (!this.fixed) {
      const keep = new Set(f.rows.map((r) => String(r.id)));
      for (const el of [...this.body.children] as HTMLElement[]) {
        if (!keep.has(el.dataset.key ?? "")) el.remove();
      }
    }
    for (const row of f.rows) this.fill(row, String(row.id));
    this.order(f.rows.map((r) => String(r.id)));
    this.total(f.total);
  }

  // patch is false where one before it is missing: the view must be asked for again.
  patch(p: Patch): boolean {
    if (p.seq !== this.seq + 1) return false;
    this.seq = p.seq;
    for (const row of p.upsert ?? []) this.fill(row, String(row.key));
    if (!this.fixed) {
      for (const key of p.remove ?? []) {
        this.rows.get(key)?.remove();
        this.rows.delete(key);
      }
    }
    if (p.order) this.order(p.order);
    this.total(p.total);
    return true;
  }

  private order(keys: string[]): void {
    if (this.fixed) return;
    keys.forEach((key, i) => {
      const el = this.rows.get(key);
      if (el && this.body.children[i] !== el) this.body.insertBefore(el, this.body.children[i] ?? null);
    });
  }

  protected total(n: number): void {
    if (this.fixed) return;
    for (const e of document.querySelectorAll<HTMLElement>(`[data-empty="${this.el.dataset.row ?? this.el.dataset.live}"]`)) e.hidden = n > 0;
    const more = document.getElementById(this.el.dataset.more ?? "");
    const rest = n - Number(this.el.dataset.limit ?? 100);
    if (more) {
      more.hidden = rest <= 0;
      more.querySelector("[data-count]")!.textContent = String(rest);
    }
  }
}

// VirtualTable shows a window of its rows as tall as the screen; the rest is empty space that scrolls.
export class VirtualTable extends Table {
  private readonly box: HTMLElement;
  private readonly pads: [HTMLElement, HTMLElement];
  private height = 0; // of a row, px: measured once for a width, or the space would shift under the reader
  private count: number;
  private offset = 0;
  private timer = 0;

  constructor(id: string, el: HTMLElement, private readonly moved: (t: VirtualTable) => void) {
    super(id, el);
    this.box = el.closest<HTMLElement>(".scroll")!;
    this.box.classList.add("virtual");
    document.querySelector("nav.pager")?.remove();
    const pad = () => {
      const body = document.createElement("tbody"), tr = body.insertRow(), td = tr.insertCell();
      body.className = "pad";
      body.setAttribute("aria-hidden", "true");
      td.colSpan = 99;
      return body;
    };
    this.pads = [pad(), pad()];
    const rows = el.querySelector("tbody")!;
    rows.before(this.pads[0]);
    rows.after(this.pads[1]);
    this.count = Number(el.dataset.total ?? 0);
    const start = Number(el.dataset.offset ?? 0);
    this.measure();
    this.window(start - (start % overscan));
    this.box.scrollTop = start * this.height;
    this.box.addEventListener("scroll", () => this.scrolled(), { passive: true });
    addEventListener("resize", () => {
      this.height = 0;
      this.space();
      this.scrolled();
    });
  }

  private window(offset: number): void {
    this.offset = offset;
    const seen = Math.ceil(Math.max(this.box.clientHeight, 600) / (this.height || 30));
    this.el.dataset.offset = String(offset);
    this.el.dataset.limit = String(Math.min(1000, Math.ceil(seen / overscan) * overscan + 3 * overscan));
    this.space();
  }

  private measure(): void {
    const rows = this.el.querySelectorAll("tbody:not(.pad) > tr");
    if (this.height || rows.length === 0) return;
    this.height = (rows[rows.length - 1]!.getBoundingClientRect().bottom - rows[0]!.getBoundingClientRect().top) / rows.length;
  }

  private space(): void {
    this.measure();
    const limit = Number(this.el.dataset.limit);
    this.pads[0].querySelector("td")!.style.height = `${this.offset * this.height}px`;
    this.pads[1].querySelector("td")!.style.height = `${Math.max(0, this.count - this.offset - limit) * this.height}px`;
    this.pads[0].hidden = this.offset === 0;
    this.pads[1].hidden = this.count <= this.offset + limit;
    this.el.setAttribute("aria-rowcount", String(this.count + 1));
  }

  private scrolled(): void {
    if (this.timer) return;
    this.timer = window.setTimeout(() => {
      this.timer = 0;
      const first = Math.floor(this.box.scrollTop / (this.height || 30));
      const last = first + Math.ceil(this.box.clientHeight / (this.height || 30));
      const end = this.offset + Number(this.el.dataset.limit);
      const low = first < this.offset + overscan / 2 && this.offset > 0, high = last > end - overscan / 2 && end < this.count;
      if (!low && !high) return;
      const want = Math.max(0, first - overscan);
      this.window(want - (want % overscan));
      this.moved(this);
    }, 50);
  }

  // look shows the rows of another filter, from the top.
  look(filter: string): void {
    this.el.dataset.filter = filter;
    this.box.scrollTop = 0;
    this.window(0);
    this.moved(this);
  }

  protected override total(n: number): void {
    super.total(n);
    this.count = n;
    const t = document.getElementById("total");
    if (t) t.textContent = String(n);
    if (this.offset >= n && this.offset > 0) {
      this.window(0);
      this.moved(this);
      return;
    }
    this.space();
  }
}
