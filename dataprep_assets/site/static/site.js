// What pages do with JavaScript; without it, they show everything, unfiltered.
"use strict";

// Below `/site/`, `dataprep ui` serves the pages together with Dagster, so links to Dagster's pages work only there.
function showDagsterLinks() {
  const served = /^https?:$/.test(location.protocol) && /^(.*)\/site\//.exec(location.pathname);
  if (!served) return;
  for (const link of document.querySelectorAll("a[data-dagster]")) {
    link.href = `${served[1]}/${link.dataset.dagster}`;
    link.hidden = false;
  }
}

// A form with `data-filter="ID"` filters the elements `[data-row]` below the element ID: the field `text` searches their
// text, and the value of another field NAME must be a line of the attribute `data-NAME`.
function connectFilter(form) {
  const rows = [...document.getElementById(form.dataset.filter).querySelectorAll("[data-row]")];
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const output = form.querySelector("output");
  function update() {
    const wanted = [...new FormData(form)].filter(([, value]) => value !== "");
    let shown = 0;
    rows.forEach((row, index) => {
      const matches = wanted.every(([name, value]) =>
        name === "text"
          ? texts[index].includes(value.toLowerCase())
          : (row.dataset[name] ?? "").split("\n").includes(value));
      row.hidden = !matches;
      shown += matches;
    });
    if (output) output.textContent = shown === rows.length ? "" : `${shown} of ${rows.length} rows shown`;
  }
  form.addEventListener("input", update);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  update(); // a browser keeps the values of the fields when it reloads a page
}

// A checkbox with `data-tokens="ID"` shows the boundaries of the tokens below the element ID.
function connectTokens(box) {
  const update = () => document.getElementById(box.dataset.tokens).classList.toggle("show-tokens", box.checked);
  box.addEventListener("change", update);
  update();
}

showDagsterLinks();
document.querySelectorAll("form[data-filter]").forEach(connectFilter);
document.querySelectorAll("input[data-tokens]").forEach(connectTokens);
