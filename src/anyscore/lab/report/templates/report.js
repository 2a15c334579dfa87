// The page is complete without this: it chooses one example of many, and the theme.
(() => {
  "use strict";
  const root = document.documentElement;
  const theme = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const label = () => { theme.textContent = isDark() ? "Light theme" : "Dark theme"; };
  theme.hidden = false;
  theme.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    label();
  });
  system.addEventListener("change", label);
  label();

  const chooser = document.getElementById("example");
  if (!chooser) return;
  const examples = [...document.querySelectorAll(".example")];
  const show = () => examples.forEach((example, i) => {
    example.hidden = i !== chooser.selectedIndex;
  });
  const go = (by) => {
    chooser.selectedIndex = (chooser.selectedIndex + by + examples.length) % examples.length;
    show();
  };
  chooser.addEventListener("change", show);
  document.getElementById("previous").addEventListener("click", () => go(-1));
  document.getElementById("next").addEventListener("click", () => go(1));
  document.querySelector(".chooser").hidden = false;
  show();
})();
