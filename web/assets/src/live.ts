// The live socket: every element with data-live is subscribed to its view, and the mark in the header says
// how live the page is. What may be old is marked as stale, with the time since when.

import { span } from "./format";
import { Full, Patch, Table, VirtualTable } from "./table";

interface Failure { op: "error"; id: string; message: string }
type Frame = Full | Patch | Failure;

const silence = 10_000; // ms without a frame: the appliance tells every 3 s that it lives

class Live {
  private socket: WebSocket | undefined;
  private readonly tables: Table[];
  private last = 0; // when the last frame came
  private tries = 0;
  private retry = 0;

  constructor(private readonly mark: HTMLElement, elements: HTMLElement[]) {
    const ask = (t: Table) => this.ask(t);
    this.tables = elements.map((el, i) => el.dataset.virtual === undefined ? new Table(`t${i}`, el) : new VirtualTable(`t${i}`, el, ask));
  }

  start(): void {
    this.say("lost", "connecting");
    this.open();
    this.filters();
    setInterval(() => {
      if (this.socket?.readyState === WebSocket.OPEN && this.last > 0 && Date.now() - this.last > silence) this.lost("no news");
    }, 1000);
    addEventListener("online", () => this.open());
  }

  private say(state: string, text: string): void {
    if (this.mark.dataset.state === state && this.mark.textContent === text) return;
    this.mark.dataset.state = state;
    this.mark.textContent = text;
    document.documentElement.toggleAttribute("data-stale", state !== "live" && this.last > 0);
  }

  private stale(): string {
    return this.last === 0 ? "" : `, stale since ${new Date(this.last).toLocaleTimeString()}`;
  }

  private ask(t: Table): void {
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(t.subscribe());
  }

  private open(): void {
    if (this.socket && this.socket.readyState < WebSocket.CLOSING) return;
    clearTimeout(this.retry);
    const url = new URL("/api/v1/live", location.href);
    url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
    const s = new WebSocket(url, "o2ibd.live.v1");
    this.socket = s;
    s.onopen = () => {
      this.tries = 0;
      for (const t of this.tables) this.ask(t);
    };
    s.onmessage = (m) => {
      if (this.socket === s) this.frame(JSON.parse(String(m.data)) as Frame);
    };
    s.onclose = (e) => {
      if (this.socket !== s) return;
      if (e.code === 1008 && !e.reason.includes("session")) this.say("error", (e.reason || "closed by the appliance") + this.stale());
      else this.lost(e.code === 1008 ? "signed out" : "reconnecting");
    };
  }

  // lost says so and tries again, later each time.
  private lost(why: string): void {
    const old = this.socket;
    this.socket = undefined;
    old?.close();
    this.tries++;
    this.say("lost", why + this.stale());
    clearTimeout(this.retry);
    this.retry = window.setTimeout(() => this.open(), Math.min(15_000, 300 * 2 ** this.tries) * (0.75 + Math.random() / 2));
    void this.signedIn().then((yes) => {
      if (yes) return;
      clearTimeout(this.retry);
      this.say("error", "your session has ended" + this.stale());
      const a = document.createElement("a");
      a.href = "/sign-in?next=" + encodeURIComponent(location.pathname + location.search);
      a.textContent = "Sign in again";
      this.mark.append(" ", a);
    });
  }

  // signedIn is false only where the appliance answers that nobody is.
  private async signedIn(): Promise<boolean> {
    try {
      return (await fetch("/account", { redirect: "manual" })).type !== "opaqueredirect";
    } catch {
      return true; // it cannot be asked
    }
  }

  private frame(f: Frame): void {
    this.last = Date.now();
    this.say("live", "live");
    const t = this.tables.find((x) => x.id === f.id);
    if (f.op === "error") {
      if (t instanceof VirtualTable) this.problem(f.message);
      else this.say("error", f.message);
    } else if (t && f.op === "full") {
      this.problem("");
      t.full(f);
    } else if (t && f.op === "patch" && !t.patch(f)) {
      this.ask(t); // a frame is missing
    }
  }

  // filters show their rows while they are typed.
  private filters(): void {
    const input = document.querySelector<HTMLInputElement>(".filter input[name=filter]");
    const table = this.tables.find((t) => t instanceof VirtualTable);
    if (!input || !table) return;
    let timer = 0;
    input.addEventListener("input", () => {
      clearTimeout(timer);
      timer = window.setTimeout(() => {
        const url = new URL(location.href);
        url.searchParams.set("filter", input.value);
        url.searchParams.delete("offset");
        history.replaceState(null, "", url);
        table.look(input.value);
      }, 250);
    });
  }

  private problem(text: string): void {
    let p = document.getElementById("filter-problem");
    if (!text) {
      p?.remove();
      return;
    }
    if (!p) {
      p = document.createElement("p");
      p.id = "filter-problem";
      p.className = "problem";
      p.setAttribute("role", "alert");
      document.querySelector(".filter")?.after(p);
    }
    p.textContent = text;
  }
}

export function live(): void {
  const mark = document.getElementById("live");
  const elements = [...document.querySelectorAll<HTMLElement>("[data-live]")];
  if (!mark) return;
  if (elements.length === 0) {
    mark.hidden = true;
    return;
  }
  new Live(mark, elements).start();
  setInterval(() => {
    for (const t of document.querySelectorAll<HTMLTimeElement>("time.ago")) t.textContent = span(Date.now() - Date.parse(t.dateTime)) + " ago";
  }, 1000);
}
