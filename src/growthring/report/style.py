"""The look of the page, light and dark, and the script that shows values on hover."""

from __future__ import annotations

from growthring.report.colours import variables

_BASE = """
:root{color-scheme:light dark;--back:#fbfbfa;--card:#fff;--ink:#1d2126;--soft:#5c6168;--edge:#e1e3e6;
--grid:#eceef0;--whole:#f1f2f4;--shade:#c3c8ce;--on:#fff;LIGHT}
@media(prefers-color-scheme:dark){:root{--back:#14171a;--card:#1c2024;--ink:#e7eaed;--soft:#a2a9b1;
--edge:#343a41;--grid:#2a2f35;--whole:#262b30;--shade:#4b535c;--on:#fff;DARK}}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",
Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:1180px;margin:0 auto;padding:28px 20px 60px}
h1{font-size:26px;line-height:1.25;margin:0;overflow-wrap:anywhere}
h2{font-size:19px;margin:44px 0 12px}
h3{font-size:15px;margin:18px 0 6px;overflow-wrap:anywhere}
small,.hint,.missing,header p{color:var(--soft)}
header p{margin:4px 0 0}
.hint,.missing{font-size:14px;margin:8px 0}
.missing{border-left:3px solid var(--edge);padding-left:10px}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(210px,1fr));gap:14px;list-style:none;
margin:0 0 18px;padding:0}
.cards li{background:var(--card);border:1px solid var(--edge);border-radius:10px;padding:14px 18px}
.cards b{display:block;font-size:28px;line-height:1.2;font-weight:650;white-space:nowrap}
.cards small{display:block}
.scroll{overflow-x:auto;margin:10px 0;--under:var(--back);background:
linear-gradient(to right,var(--under) 40%,transparent) 0 0/36px 100%,
linear-gradient(to left,var(--under) 40%,transparent) 100% 0/36px 100%,
linear-gradient(to right,var(--shade),transparent) 0 0/12px 100%,
linear-gradient(to left,var(--shade),transparent) 100% 0/12px 100%;
background-repeat:no-repeat;background-attachment:local,local,scroll,scroll}
table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums;min-width:40%}
caption{caption-side:top;text-align:left;color:var(--soft);padding:0 0 6px;white-space:nowrap}
th,td{padding:6px 14px 6px 0;border-bottom:1px solid var(--edge);text-align:left;vertical-align:top}
thead th{font-weight:600;color:var(--soft);white-space:nowrap;vertical-align:bottom}
tbody th{font-weight:500;min-width:5em;max-width:25em;overflow-wrap:anywhere}
.numbers td,.numbers thead th:not(:first-child){text-align:right;white-space:nowrap;padding-left:10px}
.texts td{overflow-wrap:anywhere;max-width:36em}
th .name{display:-webkit-box;-webkit-box-orient:vertical;-webkit-line-clamp:2;overflow:hidden}
th small{display:block;font-weight:400;font-size:12px;overflow:hidden;text-overflow:ellipsis;
white-space:nowrap;max-width:26em}
summary+.scroll:last-child caption{position:absolute;width:1px;height:1px;overflow:hidden;
clip-path:inset(50%)}
.headline table{width:100%}
.bar{display:block;height:5px;min-width:90px;border-radius:3px;background:var(--whole);margin-top:4px}
.bar i{display:block;height:5px;border-radius:3px;background:var(--c0)}
.bar.neutral i{background:var(--c6)}
.heat{display:block;margin:-3px -6px;padding:3px 6px;border-radius:3px;
background:color-mix(in srgb,var(--c0) var(--heat),transparent)}
.legend{display:flex;flex-wrap:wrap;gap:4px 20px;list-style:none;margin:8px 0;padding:0;font-size:14px}
.legend li{display:flex;align-items:center;gap:7px;max-width:100%}
.legend .name{overflow:hidden;text-overflow:ellipsis;white-space:nowrap;max-width:34em}
.legend i{width:13px;height:13px;border-radius:3px}
.sample{width:32px;height:12px;flex:none}
.sample path{stroke-width:2.5;fill:none}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:14px}
figure{margin:0;background:var(--card);border:1px solid var(--edge);border-radius:10px;
padding:12px 14px 6px;min-width:0}
.beside{color:var(--soft);font-size:14px;align-self:center}.beside p{margin:8px 0}
figure.full{margin:12px 0}
figcaption{font-weight:600;font-size:14px;margin-bottom:6px;overflow-wrap:anywhere}
figcaption span{font-weight:400;color:var(--soft)}
figure .scroll{margin:0;--under:var(--card)}
.scroll>svg{display:block;width:100%;height:auto}
.wide>svg{min-width:900px}
.wide svg.costs .back{fill:none}
svg text{font-size:12px;fill:var(--soft);font-variant-numeric:tabular-nums}
svg .axis-title{fill:var(--ink)}
svg .stage{font-size:11px}
.grid{stroke:var(--grid)}.base{stroke:var(--soft)}
.boundary{stroke:var(--soft);stroke-dasharray:2 4;opacity:.55}
.curve{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.curve.faint{stroke-width:1.4;opacity:.75}
.band{opacity:.13}.chart.pointed .band{opacity:.05}
.chart.pointed .curve{opacity:.22}.chart .curve.near{opacity:1;stroke-width:2.8}
.whole{fill:var(--whole);stroke:var(--soft);stroke-dasharray:4 4}
.ring{stroke:var(--card);stroke-width:1}
svg text.on-seed,svg text.on-ring0{fill:var(--on);font-weight:600}
svg text.on-ring1{fill:#10161c;font-weight:600}
line.now{stroke:var(--c1);stroke-width:2}svg text.now{fill:var(--c1);font-weight:600}
.hover{fill:transparent}.hover:hover{fill:var(--ink);fill-opacity:.1}
details{margin:10px 0}
summary{cursor:pointer;font-size:14px;overflow-wrap:anywhere}
summary:focus-visible,.scroll:focus-visible{outline:2px solid var(--c0);outline-offset:2px}
.notes{padding-left:20px}.notes small{display:block;overflow-wrap:anywhere}
#tip{position:fixed;pointer-events:none;background:var(--ink);color:var(--back);border-radius:6px;
padding:5px 9px;font-size:13px;line-height:1.4;max-width:320px;white-space:pre-line;
overflow-wrap:anywhere;z-index:9}
@media(max-width:560px){main{padding:18px 12px 48px}figure{padding:10px 10px 4px}
.plain text{font-size:16px}.plain .stage{font-size:14px}}
@media print{figure{break-inside:avoid}#tip{display:none}}
"""

# The curves carry no values: a point's place and the frame of the chart give them back.
SCRIPT = """
const tip = document.getElementById("tip");
for (const svg of document.querySelectorAll("svg.chart")) {
  const [l, r, b, t, x0, x1, y0, y1, log] = svg.dataset.frame.split(" ").map(Number);
  const [[xn, xu], [yn, yu]] = [svg.dataset.x, svg.dataset.y].map(s => s.split("|"));
  const curves = [...svg.querySelectorAll(".curve")].map(c =>
    [c, c.getAttribute("d").slice(1).split("L").map(p => p.split(",").map(Number))]);
  const show = v => +v.toPrecision(4);
  const leave = () => {
    tip.hidden = true;
    svg.classList.remove("pointed");
    svg.querySelector(".near")?.classList.remove("near");
  };
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("pointermove", e => {
    const m = new DOMPoint(e.clientX, e.clientY).matrixTransform(svg.getScreenCTM().inverse());
    let best = [40 * 40];
    for (const [c, points] of curves) for (const [i, [x, y]] of points.entries()) {
      const d = (x - m.x) ** 2 + (y - m.y) ** 2;
      if (d < best[0]) best = [d, c, x, y, i];
    }
    leave();
    if (!best[1]) return;
    const [, c, x, y, i] = best, f = (y - b) / (t - b);
    const value = log ? y0 * (y1 / y0) ** f : y0 + (y1 - y0) * f;
    const at = x0 + (x1 - x0) * (x - l) / (r - l);
    tip.textContent = c.dataset.label + "\\n" + (c.dataset.told?.split("|")[i] ??
      `${yn}: ${show(value)} ${yu}\\n${xn}: ${show(at)} ${xu}`);
    tip.hidden = false;
    tip.style.left = Math.min(e.clientX + 14, innerWidth - tip.offsetWidth - 8) + "px";
    tip.style.top = Math.min(e.clientY + 14, innerHeight - tip.offsetHeight - 8) + "px";
    svg.classList.add("pointed");
    c.classList.add("near");
  });
}
"""


def stylesheet() -> str:
    """The CSS of the page."""
    return _BASE.replace("LIGHT", variables(dark=False)).replace("DARK", variables(dark=True))
