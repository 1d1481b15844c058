// Contents: marks the section that is being read.
{
  const links = new Map();
  for (const link of document.querySelectorAll("nav a")) links.set(link.hash.slice(1), link);
  const targets = [...links.keys()].map((id) => document.getElementById(id)).filter(Boolean);
  const mark = () => {
    const passed = targets.filter((target) => target.getBoundingClientRect().top < 120);
    const current = passed.at(-1) ?? targets[0];
    for (const [id, link] of links) {
      if (current && id === current.id) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  };
  let waiting = false;
  document.addEventListener(
    "scroll",
    () => {
      if (waiting) return;
      waiting = true;
      requestAnimationFrame(() => {
        waiting = false;
        mark();
      });
    },
    { passive: true },
  );
  mark();
}
