// Without this script the page shows each figure as it is drawn first, with all its series.
for (const figure of document.querySelectorAll("figure")) {
  const drawings = [...figure.querySelectorAll("[data-variant]")];
  const state = {...drawings[0].dataset};

  const show = () => {
    for (const drawing of drawings) {
      drawing.hidden = drawing.dataset.raw !== state.raw || drawing.dataset.log !== state.log;
    }
  };

  // the legend: a click switches an entry's series on and off in every drawing of the figure
  for (const entry of figure.querySelectorAll(".legend span")) {
    const button = document.createElement("button");
    button.type = "button";
    button.title = "show or hide";
    button.dataset.entry = entry.textContent.trim();
    button.setAttribute("aria-pressed", "true");
    button.append(...entry.childNodes);
    button.addEventListener("click", () => {
      const on = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", on);
      for (const index of entry.dataset.series.split(" ")) {
        for (const group of figure.querySelectorAll(`.series[data-series="${index}"]`)) {
          group.classList.toggle("off", !on);
        }
      }
    });
    entry.replaceWith(button);
  }

  // buttons that name what they switch to
  const controls = figure.querySelector(".controls");
  const addSwitch = (name, texts, change) => {
    const button = document.createElement("button");
    let on = false;
    button.type = "button";
    button.dataset.control = name;
    button.textContent = texts[0];
    button.addEventListener("click", () => {
      on = !on;
      button.textContent = texts[Number(on)];
      change(on);
    });
    controls.append(button);
  };
  const differs = (key) => new Set(drawings.map((drawing) => drawing.dataset[key])).size > 1;
  if (differs("raw")) {
    addSwitch("raw", ["Show raw accuracy", "Show scaled accuracy"], (on) => {
      state.raw = on ? "1" : "0";
      show();
    });
  }
  if (differs("log")) {
    const first = state.log;
    const texts = ["Linear x-axis", "Logarithmic x-axis"];
    addSwitch("log", first === "1" ? texts : texts.reverse(), (on) => {
      state.log = on === (first === "1") ? "0" : "1";
      show();
    });
  }
  if (figure.querySelector(".series.faint") && figure.querySelector(".series:not(.faint)")) {
    addSwitch("seeds", ["Hide single seeds", "Show all seeds"], (on) => {
      for (const group of figure.querySelectorAll(".series.faint")) {
        group.toggleAttribute("hidden", on);
      }
    });
  }
}
