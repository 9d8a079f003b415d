
(() => {
  "use strict";
  const list = document.querySelector("[role=tablist]");
  const tabs = [...list.querySelectorAll("[role=tab]")];
  const panelOf = (tab) => document.getElementById(tab.getAttribute("aria-controls"));

  const select = (chosen, focus) => {
    for (const tab of tabs) {
      const on = tab === chosen;
      tab.setAttribute("aria-selected", String(on));
      tab.tabIndex = on ? 0 : -1;
      panelOf(tab).hidden = !on;
    }
    if (focus) chosen.focus();
  };
  const fromAddress = () => tabs.find((tab) => "#" + tab.getAttribute("aria-controls") === location.hash);

  if (tabs.length > 1) {
    list.hidden = false;
    document.body.classList.add("tabbed");
    for (const tab of tabs) {
      panelOf(tab).setAttribute("role", "tabpanel");
      panelOf(tab).setAttribute("aria-labelledby", tab.id);
      tab.addEventListener("click", () => select(tab, false));
    }
    list.addEventListener("keydown", (event) => {
      const at = tabs.indexOf(document.activeElement);
      const last = tabs.length - 1;
      const to = { ArrowRight: at === last ? 0 : at + 1, ArrowLeft: at === 0 ? last : at - 1, Home: 0, End: last };
      if (at < 0 || !(event.key in to)) return;
      event.preventDefault();
      select(tabs[to[event.key]], true);
    });
    select(fromAddress() || tabs[0], false);
    addEventListener("hashchange", () => { const tab = fromAddress(); if (tab) select(tab, false); });
  }

  const tip = document.getElementById("tooltip");
  let shown = null;
  const hide = () => { tip.hidden = true; shown = null; };
  const show = (term) => {
    shown = term;
    tip.textContent = document.getElementById(term.getAttribute("aria-describedby")).textContent;
    tip.hidden = false;
    const at = term.getBoundingClientRect();
    const box = tip.getBoundingClientRect();
    const width = document.documentElement.clientWidth;
    tip.style.left = Math.max(8, Math.min(at.left, width - box.width - 8)) + "px";
    const above = at.top - box.height - 6;
    tip.style.top = (above >= 4 ? above : at.bottom + 6) + "px";
  };
  for (const term of document.querySelectorAll(".term")) {
    term.addEventListener("mouseenter", () => show(term));
    term.addEventListener("focus", () => show(term));
    term.addEventListener("click", () => show(term));
    term.addEventListener("mouseleave", (event) => {
      if (event.relatedTarget !== tip && document.activeElement !== term) hide();
    });
    term.addEventListener("blur", hide);
  }
  tip.addEventListener("mouseleave", () => { if (document.activeElement !== shown) hide(); });
  addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  // Reaching a term by keyboard may scroll it into view: then its tooltip goes with it.
  addEventListener("scroll", () => { if (shown && document.activeElement === shown) show(shown); else hide(); }, true);

  // Closed details would print closed.
  const details = [...document.querySelectorAll("details")];
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = details.filter((one) => !one.open);
    for (const one of opened) one.open = true;
  });
  addEventListener("afterprint", () => { for (const one of opened) one.open = false; });
})();
