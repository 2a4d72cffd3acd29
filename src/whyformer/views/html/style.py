"""The style sheet of all pages. Still pictures have a white ground on purpose: their colour scales start from it.

``only light`` says so to browsers that darken pages by themselves: weak scores would be brighter than strong ones. The
page's script knows scales that start from a dark ground, and changes both together.
"""

STYLE = """
:root{--wf-ground:#fff;--wf-ink:#1b1f24;--wf-grey:#57606a;--wf-line:#d8dde3;--wf-special:#8a929b;--wf-doubt:#fff8ee;
--wf-raise:#2b7bb9;--wf-lower:#d9781a;--wf-card:#f6f8fa;--wf-good:#1a7f37;--wf-bad:#b35900}
.wf-dark{--wf-ground:#0d1117;--wf-ink:#e6edf3;--wf-grey:#9aa5b1;--wf-line:#30363d;--wf-special:#6e7681;
--wf-doubt:#2b2111;
--wf-raise:#4c9fdc;--wf-lower:#e0913f;--wf-card:#161b22;--wf-good:#3fb950;--wf-bad:#f0a35e}
.wf-body{margin:0;background:var(--wf-ground)}
.wf{
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;color:var(--wf-ink);
background:var(--wf-ground);
max-width:1240px;margin:0 auto;padding:16px;box-sizing:border-box;text-align:left}
.wf *{box-sizing:border-box}
.wf h1{font-size:1.6em;margin:.3em 0 .6em;line-height:1.2;overflow-wrap:anywhere}
.wf h2{font-size:1.15em;margin:0 0 .6em;line-height:1.3;overflow-wrap:anywhere}
.wf h3{font-size:1em;margin:0 0 .3em;overflow-wrap:anywhere}
.wf-heard{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap}
.wf p{margin:.4em 0}
.wf-words{max-width:44em}
.wf-view{border:1px solid var(--wf-line);border-radius:8px;padding:16px;margin:16px 0}
.wf-facts{display:flex;flex-wrap:wrap;gap:.3em 1.6em;margin:0 0 1em}
.wf-facts dt,.wf-facts dd,.wf-terms dt,.wf-terms dd{margin:0}
.wf-facts div{display:flex;gap:.5em}
.wf-facts dt{color:var(--wf-grey);white-space:nowrap}
.wf-facts dd{overflow-wrap:anywhere}
.wf-answer{font-size:1.25em;font-weight:600}
.wf-answer span,.wf-says{color:var(--wf-grey);font-weight:400;font-size:.8em}
.wf-says{margin:0 0 .2em;font-size:.93em}
.wf-terms{display:grid;grid-template-columns:minmax(min-content,max-content) 1fr;gap:.2em 1.5em;margin:.4em 0 1em}
.wf-terms code{font-size:.92em;overflow-wrap:anywhere}
.wf-row{display:grid;grid-template-columns:repeat(var(--columns),minmax(0,1fr));gap:20px 28px;margin:0 0 1em}
.wf-row.wf-small{gap:8px;grid-template-columns:repeat(var(--columns),minmax(0,170px))}
.wf-small h3{font-size:.72em;font-weight:400;margin:0;color:var(--wf-grey)}
.wf-panel{min-width:0}
.wf-panel svg{display:block;width:100%;height:auto;max-width:420px}
.wf-panel svg.wf-wide{max-width:640px}
.wf-run{font-size:1.12em;line-height:1.9;white-space:pre-wrap;overflow-wrap:anywhere}
.wf-token{border-radius:3px;padding:.12em .06em;-webkit-box-decoration-break:clone;box-decoration-break:clone}
.wf-run .wf-special{font-style:italic}
.wf .wf-aside{background:repeating-linear-gradient(115deg,var(--wf-line) 0 2px,var(--wf-ground) 2px 6px);
color:var(--wf-grey)}
.wf-voice{margin:.7em 0 0;font-size:.8em;color:var(--wf-grey);text-transform:uppercase;letter-spacing:.05em}
.wf-reading .wf-run{margin:0 0 .3em}
.wf-quiet{color:var(--wf-grey);font:.8em ui-monospace,SFMono-Regular,Menlo,"DejaVu Sans Mono",monospace;
overflow-wrap:anywhere}
.wf-fold{display:inline}
.wf-fold summary{display:inline-block;cursor:pointer;color:var(--wf-grey);font-size:.85em;
border:1px solid var(--wf-line);
border-radius:9px;padding:0 .6em;margin:0 .2em;line-height:1.6}
.wf-said{font-size:1.25em;line-height:1.8;margin:.2em 0;white-space:pre-wrap;overflow-wrap:anywhere}
.wf-said button{font:inherit;color:inherit;background:none;border:0;border-bottom:1px dotted #8a929b;padding:0;
margin:0;
display:inline;white-space:pre-wrap;text-align:left;border-radius:0}
.wf-live .wf-said button{cursor:pointer}
.wf-live .wf-said button:hover,.wf-said button.wf-chosen{background:var(--wf-ink);color:var(--wf-ground)}
.wf button:focus-visible,.wf summary:focus-visible{outline:2px solid var(--wf-raise);outline-offset:2px}
.wf-chips{display:none;flex-wrap:wrap;align-items:center;gap:.4em}
.wf-live .wf-chips{display:flex}
.wf-chips button{font:inherit;font-size:.85em;color:var(--wf-ink);background:var(--wf-ground);
border:1px solid var(--wf-special);border-radius:12px;
padding:.1em .8em;cursor:pointer;max-width:100%;overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.wf-chips button[aria-pressed=true]{background:var(--wf-ink);color:var(--wf-ground)}
.wf-from{min-height:1.6em}
table.wf-bars{border-collapse:collapse;width:100%;max-width:620px;font-size:.93em;border:0;margin:.3em 0}
table.wf-bars tr,table.wf-bars td,table.wf-bars th{background:none;border:0;padding:1px 6px 1px 0;text-align:left;
font-weight:400;vertical-align:middle;white-space:nowrap}
table.wf-bars td:first-child{color:var(--wf-grey);text-align:right;width:1%}
table.wf-bars th{width:1%;max-width:14em;overflow:hidden;text-overflow:ellipsis;
font-family:ui-monospace,SFMono-Regular,Menlo,"DejaVu Sans Mono",monospace;font-size:.93em}
table.wf-bars th.wf-pair{max-width:24em}
table.wf-bars td.wf-number{width:1%;text-align:right;font-variant-numeric:tabular-nums;color:var(--wf-ink)}
table.wf-bars td.wf-track{position:relative;min-width:60px;height:1.5em}
.wf-whisker{position:absolute;top:calc(50% - .5px);height:1px;background:var(--wf-ink)}
.wf-bar{position:absolute;top:calc(50% - .53em);height:1.06em;border-radius:2px;min-width:1px}
.wf-beyond{background-image:repeating-linear-gradient(115deg,transparent 0 5px,rgba(255,255,255,.7) 5px 8px)}
.wf-axis{position:absolute;left:50%;top:0;bottom:0;width:1px;background:var(--wf-special)}
.wf-reference{position:absolute;top:0;bottom:0;border-left:1px dotted var(--wf-grey)}
.wf-dot{position:absolute;top:50%;width:4px;height:4px;margin:-2px 0 0 -2px;border-radius:50%;
background:var(--wf-ink);opacity:.4}
table.wf-bars td.wf-end{width:1%;padding-left:8px;color:var(--wf-grey)}
table.wf-bars td.wf-more{color:var(--wf-grey)}
tr.wf-special th,tr.wf-special td.wf-number{color:var(--wf-grey);font-style:italic}
.wf:has(.wf-switch input:not(:checked)) tr.wf-special{display:none}
.wf-switch{display:inline-block;color:var(--wf-grey);font-size:.93em;cursor:pointer}
.wf-note,.wf-caption{color:var(--wf-grey);font-size:.88em;overflow-wrap:anywhere}
.wf-legend{display:flex;flex-wrap:wrap;align-items:center;gap:.2em .8em;color:var(--wf-grey);font-size:.85em}
.wf-ramp{display:block;width:180px;height:10px;border:1px solid var(--wf-line);border-radius:2px}
.wf-ends{display:flex;gap:.6em}
.wf-ends span+span::before{content:"… "}
.wf-key{display:inline-block;margin-right:1em;font-size:.9em;white-space:nowrap}
.wf-key i{display:inline-block;width:.8em;height:.8em;border-radius:2px;margin-right:.4em}
.wf-doubts{border-left:4px solid #e08214;background:var(--wf-doubt);padding:.5em .9em;margin:.8em 0 0;font-size:.93em}
.wf-doubts ul{margin:.2em 0 0;padding-left:1.2em}
@media (max-width:1000px){table.wf-bars th.wf-pair{width:50%;max-width:none;white-space:normal;
overflow-wrap:anywhere}}
@media (max-width:900px){.wf-row{grid-template-columns:repeat(min(2,var(--columns)),minmax(0,1fr))}
.wf-row.wf-small{grid-template-columns:repeat(var(--columns),minmax(0,170px));gap:4px}}
@media (max-width:620px){.wf{padding:10px}.wf-view{padding:12px}
.wf-row:not(.wf-small){grid-template-columns:minmax(0,1fr)}
.wf-terms{grid-template-columns:1fr;gap:0}.wf-terms dd{margin:0 0 .5em 1em}}
.wf [hidden]{display:none}
.wf button,.wf input{font:inherit;font-size:.88em;color:var(--wf-ink)}
.wf-theme{display:block;margin:0 0 8px auto;background:none;border:1px solid var(--wf-line);border-radius:12px;
padding:.1em .8em;cursor:pointer}
.wf-classes{list-style:none;margin:0 0 .8em;padding:0;max-width:430px}
.wf-class,.wf-line{display:grid;grid-template-columns:minmax(4em,11em) 5em minmax(60px,1fr);gap:0 8px;
align-items:center;
border-radius:4px;padding:0 4px;font-size:.93em}
.wf-first{font-weight:600}
.wf .wf-asks{font-size:1em;background:none;border:0;border-bottom:1px dotted var(--wf-grey);padding:0;cursor:pointer;
text-align:left;justify-self:start;max-width:100%}
.wf .wf-asks[aria-pressed=true]{font-weight:600;border-bottom:2px solid var(--wf-raise)}
.wf-why{margin:0 0 .6em;max-width:52em;overflow-wrap:anywhere}
.wf-why:empty{display:none}
.wf-label{overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.wf-line .wf-label{font-family:ui-monospace,SFMono-Regular,Menlo,"DejaVu Sans Mono",monospace;font-size:.93em}
.wf-pairs .wf-line{grid-template-columns:minmax(8em,20em) 5em minmax(60px,1fr)}
.wf-number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.wf-class .wf-track,.wf-line .wf-track{position:relative;height:1.5em;display:block}
.wf-line[data-units]{cursor:pointer}
.wf-line.wf-special .wf-label,.wf-line.wf-special .wf-number{color:var(--wf-grey);font-style:italic}
.wf-line.wf-here{background:var(--wf-card);box-shadow:inset 0 0 0 2px var(--wf-ink)}
.wf-live-view .wf-token{cursor:pointer}
.wf-live-view .wf-token.wf-here{box-shadow:0 0 0 2px var(--wf-ink);position:relative}
.wf [role=option]:focus-visible,.wf-stage:focus-visible,.wf canvas:focus-visible,.wf input:focus-visible{
outline:2px solid var(--wf-raise);outline-offset:2px}
.wf-live-view .wf-run .wf-special{color:var(--wf-grey);font-size:.85em}
.wf-strip{display:flex;height:110px;border-bottom:1px solid var(--wf-special);overflow-x:auto}
.wf-moment{flex:1 0 3px;position:relative;cursor:pointer}
.wf-moment i{position:absolute;left:0;right:0;margin:0 8%}
.wf-moment.wf-here{background:var(--wf-card);box-shadow:inset 0 0 0 2px var(--wf-ink)}
.wf-sound .wf-strip{overflow:visible}.wf-sound .wf-moment{flex:1 1 0}
.wf-wave{display:block;width:100%;height:44px}
.wf-ticks{position:relative;height:1.6em;border-top:1px solid var(--wf-special);font-size:.8em;color:var(--wf-grey);
}
.wf-ticks span{position:absolute;border-left:1px solid var(--wf-special);padding-left:3px;white-space:nowrap}
.wf-ticks .wf-last{right:0;border:0;border-right:1px solid var(--wf-special);padding:0 3px 0 0}
.wf-time{display:flex;justify-content:space-between}
.wf-opens{cursor:zoom-in}
.wf-large{border:1px solid var(--wf-line);border-radius:8px;padding:16px;
background:var(--wf-ground);color:var(--wf-ink)}
.wf-large form{display:flex;justify-content:space-between}
.wf-large svg{display:block;width:min(80vw,80vh);height:auto}
.wf-large::backdrop{background:#0008}
.wf-dark .wf-paper{filter:invert(1) hue-rotate(180deg)}
.wf-sort{cursor:pointer}
.wf-sort[aria-sort=ascending]::after{content:" ▲"}
.wf-sort[aria-sort=descending]::after{content:" ▼"}
.wf-unread{color:var(--wf-grey);opacity:.75;text-decoration:underline dotted}
.wf-tools{display:flex;flex-wrap:wrap;gap:.5em 1em;align-items:center;margin:.2em 0 .6em;padding:.5em .7em;
background:var(--wf-card);border-radius:8px}
.wf-tools button{background:var(--wf-ground);border:1px solid var(--wf-line);border-radius:6px;padding:.15em .7em;
cursor:pointer}
.wf-chooser{display:inline-flex}
.wf-chooser button{border-radius:0;margin-left:-1px}
.wf-chooser button:first-child{border-radius:6px 0 0 6px;margin-left:0}
.wf-chooser button:last-child{border-radius:0 6px 6px 0}
.wf-chooser button[aria-pressed=true]{background:var(--wf-ink);color:var(--wf-ground);border-color:var(--wf-ink)}
.wf-tools input[type=search]{border:1px solid var(--wf-line);border-radius:6px;padding:.15em .6em;
background:var(--wf-ground);width:9em}
.wf-tick,.wf-slide{display:inline-flex;align-items:center;gap:.35em;font-size:.88em;white-space:nowrap}
.wf-slide input{width:90px;padding:0}
.wf-tools output{font-size:.88em;color:var(--wf-grey)}
.wf-said-unit{min-height:1.6em;margin:.2em 0 .6em;font-size:.95em;color:var(--wf-grey);overflow-wrap:anywhere}
.wf-pinned .wf-said-unit{color:var(--wf-ink)}
.wf-maps{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,360px),1fr));gap:16px}
.wf-maps.wf-four{grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr))}
.wf-card{border:1px solid var(--wf-line);border-radius:8px;padding:12px;min-width:0}
.wf-map{min-width:0}
.wf-map .wf-legend{margin:.4em 0}
.wf-single .wf-parts{display:flex;flex-wrap:wrap;gap:8px 28px;align-items:flex-start}
.wf-single .wf-part{flex:1 1 440px;min-width:0;max-width:100%}
.wf-single .wf-lines{max-width:680px}
.wf-part{margin:.5em 0}
.wf-part>summary{cursor:pointer;color:var(--wf-grey);font-size:.93em;padding:.2em 0}
.wf-more{background:none;border:1px solid var(--wf-line);border-radius:12px;padding:.1em .8em;margin:.4em;
cursor:pointer}
.wf-window{overflow:auto;max-width:480px;max-height:560px;border-radius:4px}
.wf-stage{position:relative;cursor:crosshair;max-width:none}
.wf-stage img,.wf-heat{position:absolute;inset:0;width:100%;height:100%;display:block}
.wf-patch{position:absolute;display:none;box-shadow:0 0 0 2px #000,0 0 0 4px #fff;pointer-events:none;
border-radius:1px}
.wf-frame{position:absolute;box-shadow:0 0 0 2px #fff,0 0 0 4px #000;pointer-events:none}
.wf-frame b{position:absolute;left:0;bottom:100%;background:#000;color:#fff;font-size:12px;padding:0 4px;
white-space:nowrap}
.wf-beside{display:flex;flex-wrap:wrap;gap:16px;align-items:flex-start}
.wf-canvas{min-width:0;max-width:100%}
.wf-matrix{display:block;cursor:pointer}
.wf-row-of{flex:1 1 260px;min-width:240px;max-width:420px}
.wf-row-of :is(h3,h4),.wf-map h4,.wf-single h3{margin:.2em 0;font-size:.93em;overflow-wrap:anywhere}
.wf-values{display:inline-block;width:90px;height:10px;border-radius:2px;margin-right:.6em;
background:linear-gradient(to right,#3a86c0,#d97014)}
.wf-dark svg.wf-wide,.wf-dark svg.wf-map-small,
.wf-dark .wf-shaded td[style*=background]{filter:invert(1) hue-rotate(180deg)}
.wf-dark .wf-row .wf-token[style*=background]{filter:invert(1) hue-rotate(180deg)}
.wf-dark .wf-live .wf-token[style*=background]{filter:none}
.wf-badge{display:inline-flex;gap:.5em;align-items:baseline;border:1px solid var(--wf-line);border-radius:12px;
padding:.15em .8em;margin:.1em 0 .5em;background:var(--wf-card);color:var(--wf-ink);text-align:left;font-size:.88em}
button.wf-badge{cursor:pointer}
.wf-badge span{font-weight:700}
.wf-beats-yes span{color:var(--wf-good)}
.wf-beats-no span,.wf-beats-partly span{color:var(--wf-bad)}
.wf-evidence{border-left:3px solid var(--wf-line);padding:.2em 0 .2em .9em;margin:0 0 .8em}
.wf-curve{display:block;margin:.3em 0}
.wf-evidence .wf-slide input{width:220px}
.wf-told{font-size:.93em;font-variant-numeric:tabular-nums}
.wf-token.wf-away{background:var(--wf-line)!important;color:transparent!important;text-decoration:none}
.wf-line.wf-away .wf-label{text-decoration:line-through;color:var(--wf-grey)}
.wf-line.wf-away .wf-track,.wf-moment.wf-away i{opacity:.25}
.wf-gone{image-rendering:pixelated}
.wf-folded>:not(h2){display:none}
.wf-folded>h2{margin:0}
.wf .wf-unfold{font:inherit;background:none;border:0;padding:0;cursor:pointer;text-align:left}
.wf-unfold::before{content:"▾ ";color:var(--wf-grey)}
.wf-folded .wf-unfold::before{content:"▸ "}
.wf-heads-grid{overflow-x:auto;max-height:60vh;margin:0 0 1em}
.wf-heads-row{display:flex;gap:4px;align-items:center;margin:0 0 4px}
.wf-heads-row .wf-note{width:2em;text-align:right;flex:none}
.wf .wf-head{padding:2px;border:1px solid var(--wf-line);border-radius:4px;background:none;cursor:pointer;flex:none;
line-height:0}
.wf .wf-head[aria-pressed=true]{box-shadow:0 0 0 2px var(--wf-ink)}
.wf-head canvas{display:block}
.wf-findings{list-style:none;margin:.4em 0 1em;padding:0;max-width:56em}
.wf-findings li{border-left:4px solid var(--wf-line);background:var(--wf-card);padding:.4em .9em;margin:.4em 0}
.wf-findings.wf-warning li{border-color:#e08214}
.wf-findings.wf-note li{border-color:var(--wf-raise)}
.wf-findings.wf-ok li{border-color:var(--wf-good)}
.wf-findings.wf-note{font-size:1em;color:inherit}
.wf-findings p{margin:.2em 0}
.wf summary{cursor:pointer}
.wf summary h2{display:inline}
.wf details:has(>summary>h2){margin:0 0 1em}
@media (max-width:620px){table.wf-shaded td:first-child{white-space:normal!important;min-width:9em}}
@media (max-width:620px){.wf-class,.wf-line{grid-template-columns:minmax(4em,8em) 4.6em minmax(40px,1fr)}
.wf-pairs .wf-line{grid-template-columns:minmax(6em,11em) 4.6em minmax(40px,1fr)}}
"""
