// Charts of sampled history: figures with data-series are drawn with uPlot, svg with data-spark as small
// lines, all from one request, and then kept up at the right edge. Behind each chart stands a table.

import uPlot from "uplot";
import { bytes, count, local } from "./format";

interface Points { name: string; of: string; label: string; unit: string; avg: (number | null)[]; min: (number | null)[]; max: (number | null)[] }
interface Marker { at: number; kind: string; severity: string; text: string }
interface Answer { from: number; to: number; step: number; at: number[]; series: Points[]; markers: Marker[] }

const most = 24; // series in one request
const dashes: number[][] = [[], [6, 4], [2, 3], [10, 3, 2, 3], [1, 4], [8, 2]];

const colour = (name: string) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const series = (el: Element) => ((el as HTMLElement | SVGElement).dataset.series ?? "").split("\n").filter((s) => s !== "");

function amount(v: number | null | undefined, unit: string): string {
  if (v === null || v === undefined) return "–";
  if (unit.startsWith("bytes")) return bytes(v) + unit.slice(5);
  return plain(v) + " " + unit;
}

const plain = (v: number) => Math.abs(v) >= 100 || Number.isInteger(v) ? count(Math.round(v)) : v.toPrecision(2);

// label names a series; of several peers by whose it is too.
function label(p: Points, all: Points[]): string {
  return new Set(all.map((x) => x.of)).size > 1 ? `${p.of.split(">").at(-1)}: ${p.label}` : p.label;
}

class Chart {
  private plot: uPlot | undefined;
  private readonly names: string[];
  private readonly box: HTMLElement;

  constructor(private readonly el: HTMLElement) {
    this.names = series(el);
    this.box = el.querySelector(".plot")!;
  }

  show(at: number[], all: Map<string, Points>, markers: Marker[], from: number, to: number): void {
    const points = this.names.map((n) => all.get(n)).filter((p) => p !== undefined);
    if (points.length === 0) return;
    const data = [at.map((t) => t / 1000), ...points.map((p) => p.avg)] as uPlot.AlignedData;
    if (!this.plot) this.plot = this.make(points, data);
    this.marks = markers;
    this.el.classList.toggle("none", points.every((p) => p.avg.every((v) => v === null)));
    this.plot.setData(data, false);
    this.plot.setScale("x", { min: from / 1000, max: to / 1000 });
    this.table(at, points, markers);
  }

  private marks: Marker[] = [];

  private make(points: Points[], data: uPlot.AlignedData): uPlot {
    const unit = points[0]!.unit;
    const said = document.createElement("span");
    said.className = "unit";
    said.textContent = ` ${unit}`;
    this.el.querySelector("figcaption")!.append(said);
    const axis = { stroke: () => colour("--muted"), grid: { stroke: () => colour("--line"), width: 1 }, ticks: { stroke: () => colour("--line"), width: 1 }, font: "12px system-ui, sans-serif" };
    const size = () => ({ width: Math.max(200, this.box.clientWidth), height: 180 });
    const plot = new uPlot({
      ...size(),
      cursor: { sync: { key: "o2ibd" }, drag: { x: false, y: false } },
      scales: { y: { range: (_, min, max) => [Math.min(0, min ?? 0), Math.max(1, (max ?? 1) * 1.05)] } },
      axes: [axis, { ...axis, size: 74, values: (_, ticks) => ticks.map((t) => (unit.startsWith("bytes") ? bytes(t) : plain(t))) }],
      series: [{ value: (_, t) => (t === null ? "–" : local(t * 1000)) }, ...points.map((p, i) => ({
        label: label(p, points), stroke: () => colour(`--c${(i % 4) + 1}`), width: 1.5, dash: dashes[i % dashes.length], spanGaps: false, points: { show: false },
        value: (_: uPlot, v: number | null) => amount(v, p.unit),
      }))],
      hooks: { draw: [(u) => this.mark(u)] },
    }, data, this.box);
    new ResizeObserver(() => {
      if (this.box.clientWidth !== plot.width) plot.setSize(size());
    }).observe(this.box);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plot.redraw(false));
    return plot;
  }

  // mark draws a line where something changed: whole for a tunable, broken for an event.
  private mark(u: uPlot): void {
    for (const m of this.marks) {
      const x = Math.round(u.valToPos(m.at / 1000, "x", true));
      if (x < u.bbox.left || x > u.bbox.left + u.bbox.width) continue;
      u.ctx.save();
      u.ctx.strokeStyle = colour(m.kind === "tunables" ? "--accent" : m.severity === "info" ? "--muted" : "--bad");
      u.ctx.fillStyle = u.ctx.strokeStyle;
      u.ctx.setLineDash(m.kind === "tunables" ? [] : [4, 4]);
      u.ctx.beginPath();
      u.ctx.moveTo(x, u.bbox.top);
      u.ctx.lineTo(x, u.bbox.top + u.bbox.height);
      u.ctx.stroke();
      u.ctx.textAlign = "center";
      u.ctx.fillText(m.kind === "tunables" ? "▼" : "▽", x, u.bbox.top + 4);
      u.ctx.restore();
    }
  }

  // table fills the table behind the chart while it is open, at most 60 rows, the newest first.
  private table(at: number[], points: Points[], markers: Marker[]): void {
    const details = this.el.querySelector("details"), table = details?.querySelector("table");
    if (!details?.open || !table) return;
    const row = (cells: string[], tag: "th" | "td") => {
      const tr = document.createElement("tr");
      cells.forEach((c, i) => {
        const cell = document.createElement(i === 0 ? "th" : tag);
        cell.textContent = c;
        cell.scope = tag === "th" ? "col" : "row";
        tr.append(cell);
      });
      return tr;
    };
    const head = document.createElement("thead"), body = document.createElement("tbody");
    head.append(row(["Time", ...points.map((p) => `${label(p, points)} (${p.unit})`)], "th"));
    for (let i = at.length - 1; i >= Math.max(0, at.length - 60); i--) {
      body.append(row([local(at[i]!), ...points.map((p) => amount(p.avg[i], p.unit))], "td"));
    }
    table.replaceChildren(head, body);
    const list = details.querySelector("ul");
    list?.replaceChildren(...markers.slice(-20).reverse().map((m) => {
      const li = document.createElement("li");
      li.textContent = `${local(m.at)}: ${m.text}`;
      return li;
    }));
  }
}

// spark draws a line into a small svg, 100 by 20.
function spark(el: SVGElement, p: Points): void {
  const top = Math.max(1e-9, ...p.avg.map((v) => v ?? 0)), n = Math.max(1, p.avg.length - 1);
  el.querySelector("polyline")?.setAttribute("points", p.avg.map((v, i) => (v === null ? "" : `${((i / n) * 100).toFixed(1)},${(19 - (v / top) * 18).toFixed(1)}`)).join(" "));
}

class History {
  private at: number[] = [];
  private readonly points = new Map<string, Points>();
  private markers: Marker[] = [];
  private step = 0;

  constructor(private readonly names: string[], private readonly range: number, private readonly shown: (h: History) => void) {}

  draw(charts: Chart[], sparks: SVGElement[]): void {
    const to = Date.now();
    for (const c of charts) c.show(this.at, this.points, this.markers, to - this.range, to);
    for (const s of sparks) {
      const p = this.points.get(series(s)[0] ?? "");
      if (p) spark(s, p);
    }
  }

  async follow(): Promise<void> {
    let wait = 5000;
    try {
      await this.read();
      this.shown(this);
      wait = Math.max(2000, this.step);
    } catch {
      // The mark in the header says that the appliance is not reached; the charts stop at their last value.
    }
    setTimeout(() => void this.follow(), wait);
  }

  // read asks for what is missing at the right edge, or for all.
  private async read(): Promise<void> {
    const last = this.at.at(-1);
    const q = new URLSearchParams();
    for (const n of this.names) q.append("series", n);
    q.set("from", String(last === undefined ? Date.now() - this.range : last - this.step));
    if (this.step) q.set("step", String(this.step));
    const r = await fetch("/api/v1/history?" + q);
    if (!r.ok) throw new Error(r.statusText);
    const a = (await r.json()) as Answer;
    const keep = last === undefined || a.step !== this.step ? 0 : this.at.findIndex((t) => t >= a.from);
    const cut = keep < 0 ? this.at.length : keep;
    const drop = Math.max(0, this.at.findIndex((t) => t >= Date.now() - this.range));
    this.step = a.step;
    this.at = [...this.at.slice(drop, cut), ...a.at];
    for (const p of a.series) {
      const old = this.points.get(p.name);
      const join = (k: "avg" | "min" | "max") => [...(old?.[k].slice(drop, cut) ?? []), ...p[k]];
      this.points.set(p.name, { ...p, avg: join("avg"), min: join("min"), max: join("max") });
    }
    this.markers = [...this.markers.filter((m) => m.at < a.from && m.at > Date.now() - this.range), ...a.markers];
  }
}

export function charts(): void {
  const figures = [...document.querySelectorAll<HTMLElement>("figure[data-series]")];
  const sparks = [...document.querySelectorAll<SVGElement>("svg[data-series]")];
  const names = [...new Set([...figures, ...sparks].flatMap(series))];
  if (names.length === 0) return;
  const range = Number(document.querySelector<HTMLElement>("[data-range]")?.dataset.range ?? 900) * 1000;
  const list = figures.map((f) => new Chart(f));
  for (let i = 0; i < names.length; i += most) {
    const part = new Set(names.slice(i, i + most));
    const mine = (el: Element) => series(el).some((n) => part.has(n));
    const some = list.filter((_, k) => mine(figures[k]!)), lines = sparks.filter(mine);
    const h = new History([...part], range, (x) => x.draw(some, lines));
    for (const f of figures) f.querySelector("details")?.addEventListener("toggle", () => h.draw(some, lines));
    void h.follow();
  }
}
