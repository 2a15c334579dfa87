// The page is complete without this: it chooses one example of many.
(() => {
  "use strict";
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
