"""The style sheet of all pages. White ground on purpose: the colour scales start from it, also in dark notebooks.

``only light`` says so to browsers that darken pages by themselves: weak scores would be brighter than strong ones.
"""

STYLE = """
.wf{color-scheme:only light;
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;color:#1b1f24;background:#fff;
max-width:1240px;margin:0 auto;padding:16px;box-sizing:border-box;text-align:left}
.wf *{box-sizing:border-box}
.wf h1{font-size:1.6em;margin:.3em 0 .6em;line-height:1.2;overflow-wrap:anywhere}
.wf h2{font-size:1.15em;margin:0 0 .6em;line-height:1.3;overflow-wrap:anywhere}
.wf h3{font-size:1em;margin:0 0 .3em;overflow-wrap:anywhere}
.wf p{margin:.4em 0}
.wf-words{max-width:44em}
.wf-view{border:1px solid #d8dde3;border-radius:8px;padding:16px;margin:16px 0}
.wf-facts{display:flex;flex-wrap:wrap;gap:.3em 1.6em;margin:0 0 1em}
.wf-facts dt,.wf-facts dd,.wf-terms dt,.wf-terms dd{margin:0}
.wf-facts div{display:flex;gap:.5em}
.wf-facts dt{color:#57606a;white-space:nowrap}
.wf-facts dd{overflow-wrap:anywhere}
.wf-terms{display:grid;grid-template-columns:minmax(min-content,max-content) 1fr;gap:.2em 1.5em;margin:.4em 0 1em}
.wf-terms code{font-size:.92em;overflow-wrap:anywhere}
.wf-row{display:grid;grid-template-columns:repeat(var(--columns),minmax(0,1fr));gap:20px 28px;margin:0 0 1em}
.wf-row.wf-small{gap:8px;grid-template-columns:repeat(var(--columns),minmax(0,170px))}
.wf-small h3{font-size:.72em;font-weight:400;margin:0;color:#57606a}
.wf-panel{min-width:0}
.wf-panel svg{display:block;width:100%;height:auto;max-width:420px}
.wf-panel svg.wf-wide{max-width:640px}
.wf-run{font-size:1.12em;line-height:1.9;white-space:pre-wrap;overflow-wrap:anywhere}
.wf-token{border-radius:3px;padding:.12em .06em;-webkit-box-decoration-break:clone;box-decoration-break:clone}
.wf-run .wf-special{font-style:italic}
.wf .wf-aside{background:repeating-linear-gradient(115deg,#e4e8ec 0 2px,#fff 2px 6px);color:#57606a}
.wf-voice{margin:.7em 0 0;font-size:.8em;color:#57606a;text-transform:uppercase;letter-spacing:.05em}
.wf-reading .wf-run{margin:0 0 .3em}
.wf-quiet{color:#57606a;font:.8em ui-monospace,SFMono-Regular,Menlo,"DejaVu Sans Mono",monospace;opacity:.8;
overflow-wrap:anywhere}
.wf-fold{display:inline}
.wf-fold summary{display:inline-block;cursor:pointer;color:#57606a;font-size:.85em;border:1px solid #d8dde3;
border-radius:9px;padding:0 .6em;margin:0 .2em;line-height:1.6}
.wf-said{font-size:1.25em;line-height:1.8;margin:.2em 0;white-space:pre-wrap;overflow-wrap:anywhere}
.wf-said button{font:inherit;color:inherit;background:none;border:0;border-bottom:1px dotted #8a929b;padding:0;margin:0;
display:inline;white-space:pre-wrap;text-align:left;border-radius:0}
.wf-live .wf-said button{cursor:pointer}
.wf-live .wf-said button:hover,.wf-said button.wf-chosen{background:#1b1f24;color:#fff}
.wf button:focus-visible,.wf summary:focus-visible{outline:2px solid #2166ac;outline-offset:2px}
.wf-chips{display:none;flex-wrap:wrap;align-items:center;gap:.4em}
.wf-live .wf-chips{display:flex}
.wf-chips button{font:inherit;font-size:.85em;color:#1b1f24;background:#fff;border:1px solid #8a929b;border-radius:12px;
padding:.1em .8em;cursor:pointer;max-width:100%;overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.wf-chips button[aria-pressed=true]{background:#1b1f24;color:#fff}
.wf-from{min-height:1.6em}
table.wf-bars{border-collapse:collapse;width:100%;max-width:620px;font-size:.93em;border:0;margin:.3em 0}
table.wf-bars tr,table.wf-bars td,table.wf-bars th{background:none;border:0;padding:1px 6px 1px 0;text-align:left;
font-weight:400;vertical-align:middle;white-space:nowrap}
table.wf-bars td:first-child{color:#57606a;text-align:right;width:1%}
table.wf-bars th{width:1%;max-width:14em;overflow:hidden;text-overflow:ellipsis;
font-family:ui-monospace,SFMono-Regular,Menlo,"DejaVu Sans Mono",monospace;font-size:.93em}
table.wf-bars th.wf-pair{max-width:24em}
table.wf-bars td.wf-number{width:1%;text-align:right;font-variant-numeric:tabular-nums;color:#1b1f24}
table.wf-bars td.wf-track{position:relative;min-width:60px;height:1.5em}
.wf-bar{position:absolute;top:calc(50% - .53em);height:1.06em;border-radius:2px;min-width:1px}
.wf-beyond{background-image:repeating-linear-gradient(115deg,transparent 0 5px,rgba(255,255,255,.7) 5px 8px)}
.wf-axis{position:absolute;left:50%;top:0;bottom:0;width:1px;background:#8a929b}
.wf-reference{position:absolute;top:0;bottom:0;border-left:1px dotted #57606a}
.wf-dot{position:absolute;top:50%;width:4px;height:4px;margin:-2px 0 0 -2px;border-radius:50%;background:#0006}
table.wf-bars td.wf-end{width:1%;padding-left:8px;color:#57606a}
table.wf-bars td.wf-more{color:#57606a}
tr.wf-special th,tr.wf-special td.wf-number{color:#57606a;font-style:italic}
.wf:has(.wf-switch input:not(:checked)) tr.wf-special{display:none}
.wf-switch{display:inline-block;color:#57606a;font-size:.93em;cursor:pointer}
.wf-note,.wf-caption{color:#57606a;font-size:.88em;overflow-wrap:anywhere}
.wf-legend{display:flex;flex-wrap:wrap;align-items:center;gap:.2em .8em;color:#57606a;font-size:.85em}
.wf-ramp{display:block;width:180px;height:10px;border:1px solid #d8dde3;border-radius:2px}
.wf-ends{display:flex;gap:.6em}
.wf-ends span+span::before{content:"… "}
.wf-key{display:inline-block;margin-right:1em;font-size:.9em;white-space:nowrap}
.wf-key i{display:inline-block;width:.8em;height:.8em;border-radius:2px;margin-right:.4em}
.wf-doubts{border-left:4px solid #e08214;background:#fff8ee;padding:.5em .9em;margin:.8em 0 0;font-size:.93em}
.wf-doubts ul{margin:.2em 0 0;padding-left:1.2em}
@media (max-width:1000px){table.wf-bars th.wf-pair{width:50%;max-width:none;white-space:normal;overflow-wrap:anywhere}}
@media (max-width:900px){.wf-row{grid-template-columns:repeat(min(2,var(--columns)),minmax(0,1fr))}
.wf-row.wf-small{grid-template-columns:repeat(var(--columns),minmax(0,170px));gap:4px}}
@media (max-width:620px){.wf{padding:10px}.wf-view{padding:12px}
.wf-row:not(.wf-small){grid-template-columns:minmax(0,1fr)}
.wf-terms{grid-template-columns:1fr;gap:0}.wf-terms dd{margin:0 0 .5em 1em}}
"""
