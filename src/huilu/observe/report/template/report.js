"use strict";
// Texts of models and users enter the page only as text nodes, never as markup.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const make = (name, cls, text) => {
    const element = document.createElement(name);
    if (cls) element.className = cls;
    if (text !== undefined) element.textContent = text;
    return element;
  };

  // Charts: the values under the pointer, at once instead of after the browser's own delay.
  const tip = byId("tip");
  for (const group of document.querySelectorAll("g.x")) {
    const title = group.querySelector("title");
    const text = title.textContent;
    title.remove();
    group.addEventListener("pointermove", (event) => {
      tip.textContent = text;
      tip.hidden = false;
      const box = tip.getBoundingClientRect();
      const left = event.clientX + 16 + box.width > innerWidth ? event.clientX - 14 - box.width : event.clientX + 16;
      tip.style.left = Math.max(4, left) + "px";
      tip.style.top = Math.max(4, Math.min(innerHeight - box.height - 4, event.clientY - box.height - 12)) + "px";
    });
    group.addEventListener("pointerleave", () => { tip.hidden = true; });
  }

  // What cannot be seen is shown: line ends, tabs, odd spaces, controls, direction marks, lone surrogates.
  const ODD = /[\u0000-\u001f\u007f-\u00a0\u00ad\u061c\u180e\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufe00-\ufe0f\ufeff\ufff9-\ufffd]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;
  const shown = (text) => {
    const block = make("div", "text");
    let from = 0;
    for (const match of text.matchAll(ODD)) {
      block.append(text.slice(from, match.index));
      from = match.index + 1;
      const code = match[0].charCodeAt(0);
      if (code === 10) block.append(make("i", "", "⏎"), "\n");
      else if (code === 9) block.append(make("i", "", "⇥"), "\t");
      else block.append(make("i", "code", "U+" + code.toString(16).toUpperCase().padStart(4, "0")));
    }
    block.append(text.slice(from));
    if (!text) block.append(make("i", "", "(empty)"));
    return block;
  };
  const glance = (text) => text.slice(0, 200).replace(ODD, " ").replace(/ +/g, " ").trim().slice(0, 120);

  const episodes = data.episodes.map((episode) => {
    const task = data.tasks[episode.task];
    const asked = task.prompt.filter(([role]) => role === "user").map(([, content]) => content).join("\n");
    return { ...episode, task, asked, wanted: (asked + "\n" + episode.answer).toLowerCase() };
  });
  const columns = [
    ["Round", "n", (e) => e.round, (e) => String(e.round)],
    ["Task", "", (e) => e.task.id, (e) => e.task.id],
    ["Prompt", "short", (e) => e.asked, (e) => glance(e.asked)],
    ["Answer", "short", (e) => e.answer, (e) => glance(e.answer)],
    ["Reward", "n", (e) => e.reward ?? -Infinity, (e) => (e.reward === null ? "–" : e.reward.toFixed(2))],
    ["Outcome", "", (e) => e.outcome, (e) => e.outcome],
    ["Tokens", "n", (e) => e.tokens, (e) => String(e.tokens)],
  ];
  const PAGE = 50;
  const state = { sort: 0, down: true, page: 0, open: new Set() };

  const options = (id, values) => values.forEach((value) => byId(id).append(new Option(value, value)));
  options("by-round", [...new Set(episodes.map((e) => e.round))].sort((a, b) => b - a));
  options("by-outcome", [...new Set(episodes.map((e) => e.outcome))].sort());

  const rewardIs = {
    "": () => true,
    low: (r) => r !== null && r <= 0,
    some: (r) => r !== null && r > 0 && r < 1,
    high: (r) => r !== null && r >= 1,
    none: (r) => r === null,
  };
  const selected = () => {
    const round = byId("by-round").value, outcome = byId("by-outcome").value;
    const reward = rewardIs[byId("by-reward").value], text = byId("by-text").value.toLowerCase();
    const key = columns[state.sort][2];
    const found = episodes.filter((e) =>
      (round === "" || e.round === Number(round)) && (outcome === "" || e.outcome === outcome)
      && reward(e.reward) && (text === "" || e.wanted.includes(text)));
    const order = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
    return found.sort((a, b) => (state.down ? -1 : 1) * order(key(a), key(b)) || order(a.id, b.id));
  };

  const part = (name, text) => {
    const block = make("div", "part");
    block.append(make("h4", "", name), shown(text));
    return block;
  };
  const opened = (episode) => {
    const line = make("tr", "full"), cell = make("td");
    cell.colSpan = columns.length;
    for (const [role, content] of episode.task.prompt) cell.append(part("prompt, " + role, content));
    cell.append(part("answer", episode.answer));
    if (episode.task.expected) cell.append(part("expected", episode.task.expected));
    if (episode.note) cell.append(part("note", episode.note));
    cell.append(make("p", "note", `${episode.id} · ${episode.task.env} · sampled by v${episode.version} · ended by ${episode.finish}`));
    line.append(cell);
    return line;
  };
  const row = (episode) => {
    const line = make("tr", "row");
    line.tabIndex = 0;
    line.setAttribute("aria-expanded", String(state.open.has(episode.id)));
    columns.forEach(([name, cls, , text]) => {
      const cell = make("td", cls);
      if (name === "Outcome") cell.append(make("span", "tag " + episode.outcome, text(episode)));
      else if (name === "Reward" && episode.reward !== null) {
        const box = make("span", "reward"), meter = make("span", "meter"), fill = make("i");
        fill.style.width = Math.max(0, Math.min(1, episode.reward)) * 100 + "%";
        meter.append(fill);
        box.append(meter, text(episode));
        cell.append(box);
      } else cell.textContent = text(episode);
      line.append(cell);
    });
    const toggle = () => {
      if (!state.open.delete(episode.id)) state.open.add(episode.id);
      const isOpen = state.open.has(episode.id);
      line.setAttribute("aria-expanded", String(isOpen));
      if (isOpen) line.after(opened(episode));
      else line.nextSibling.remove();
    };
    line.addEventListener("click", toggle);
    line.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); toggle(); }
    });
    return line;
  };

  const heads = columns.map(([name, cls], i) => {
    const head = make("th", cls === "n" ? "n" : ""), button = make("button", "", name);
    button.type = "button";
    button.addEventListener("click", () => {
      state.down = state.sort === i ? !state.down : cls === "n";
      state.sort = i;
      state.page = 0;
      draw();
    });
    head.append(button);
    document.querySelector("#list thead tr").append(head);
    return [head, button, name];
  });

  const draw = () => {
    const found = selected(), pages = Math.max(1, Math.ceil(found.length / PAGE));
    state.page = Math.min(state.page, pages - 1);
    heads.forEach(([head, button, name], i) => {
      const isSorted = i === state.sort;
      button.textContent = name + (isSorted ? (state.down ? " ↓" : " ↑") : "");
      head.setAttribute("aria-sort", isSorted ? (state.down ? "descending" : "ascending") : "none");
    });
    const body = document.querySelector("#list tbody");
    body.replaceChildren();
    for (const episode of found.slice(state.page * PAGE, (state.page + 1) * PAGE)) {
      body.append(row(episode));
      if (state.open.has(episode.id)) body.append(opened(episode));
    }
    const judged = found.filter((e) => e.reward !== null);
    const mean = judged.reduce((sum, e) => sum + e.reward, 0) / judged.length;
    byId("found").textContent = found.length.toLocaleString("en")
      + (found.length === 1 ? " episode" : " episodes") + (judged.length ? `, mean reward ${mean.toFixed(2)}` : "");
    byId("place").textContent = `page ${state.page + 1} of ${pages}`;
    byId("back").disabled = state.page === 0;
    byId("on").disabled = state.page >= pages - 1;
    document.querySelector(".pager").hidden = pages === 1;
  };
  for (const id of ["by-round", "by-outcome", "by-reward", "by-text"]) {
    byId(id).addEventListener("input", () => { state.page = 0; draw(); });
  }
  byId("back").addEventListener("click", () => { state.page -= 1; draw(); });
  byId("on").addEventListener("click", () => { state.page += 1; draw(); });
  document.querySelector(".controls").hidden = false;
  draw();
})();
