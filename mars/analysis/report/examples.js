// Examples: the slider chooses which of the readings that are on the page already is shown.
for (const box of document.querySelectorAll("[data-examples]")) {
  const slider = box.querySelector("input[type=range]");
  const shown = box.querySelector("output");
  const taus = slider.dataset.taus.split(" ");
  const show = () => {
    const tau = taus[slider.value];
    shown.textContent = `τ = ${tau}`;
    slider.setAttribute("aria-valuetext", `τ = ${tau}`);
    for (const part of box.querySelectorAll("[data-tau]")) part.hidden = part.dataset.tau !== tau;
    for (const tick of box.querySelectorAll(".ticks button")) {
      tick.setAttribute("aria-pressed", String(tick.textContent === tau));
    }
  };
  slider.addEventListener("input", show);
  box.querySelectorAll(".ticks button").forEach((tick, index) => {
    tick.addEventListener("click", () => {
      slider.value = index;
      show();
    });
  });
  box.querySelector(".control").hidden = false;
  show();
}
