import { charts } from "./charts";
import { local } from "./format";
import { live } from "./live";

// Times in the reader's zone; the title keeps UTC.
function localTimes(): void {
  for (const t of document.querySelectorAll<HTMLTimeElement>("time:not(.ago)")) {
    t.textContent = local(Date.parse(t.dateTime));
  }
}

// Keys: / to the filter, g and a letter to a page, ? shows the keys.
function keys(): void {
  let go = false;
  document.addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey || (e.target instanceof Element && e.target.closest("input, select, textarea"))) return;
    if (go) {
      go = false;
      const a = document.querySelector<HTMLAnchorElement>(`nav.main a[data-key="${CSS.escape(e.key)}"]`);
      if (a) {
        e.preventDefault();
        a.click();
      }
      return;
    }
    if (e.key === "/") {
      const f = document.getElementById("filter");
      if (f) {
        e.preventDefault();
        f.focus();
      }
    } else if (e.key === "g") {
      go = true;
    } else if (e.key === "?") {
      document.querySelector<HTMLDialogElement>("#keys")?.showModal();
    }
  });
}

// A bundle in the making: look again soon.
function bundles(): void {
  if (document.querySelector('#bundles tr[data-state="running"]')) setTimeout(() => location.replace("/bundles"), 1000);
}

// A save that drains NIs takes a while: say how far it is.
function progress(): void {
  const said = document.getElementById("progress");
  said?.closest("form")?.addEventListener("submit", () => {
    said.textContent = "Working…";
    setInterval(async () => {
      const p = (await (await fetch("/api/v1/tunables/progress")).json()) as { phase: string; nis: { ni: string; state: string; conns_left: number; conns_before: number }[] } | null;
      if (p) said.textContent = [p.phase, ...p.nis.map((n) => `${n.ni} ${n.state}, ${n.conns_left} of ${n.conns_before} connections left`)].join("; ");
    }, 500);
  });
}

localTimes();
progress();
keys();
bundles();
live();
charts();
