// The page to play with: its data, and its tabs.

import { showAlignment } from "./alignment.js";
import { showPlane } from "./plane.js";
import { showProofs } from "./proofs.js";
import { makeTabs } from "./tabs.js";

const shows = { alignment: showAlignment, plane: showPlane, proofs: showProofs };
const played = JSON.parse(document.getElementById("data").textContent);
makeTabs(document.getElementById("tabs"), [...document.querySelectorAll("main > section")].map(
  (panel) => ({ panel, show: () => shows[panel.id](panel, played) })));
