// Made by frontend/build.py from frontend/src: change those.

function render({ model, el }) {
  const frame = document.createElement("iframe");
  frame.className = "wf-frame-host";
  frame.title = "whyformer";
  frame.style.cssText = "width:100%;border:0;height:640px;resize:vertical";
  frame.srcdoc = model.get("page");
  const ask = (event) => {
    if (event.source !== frame.contentWindow || event.data?.whyformer !== "ask") return;
    model.send({ number: String(event.data.number), label: String(event.data.label), place: Number(event.data.place) });
  };
  const answer = (told) => frame.contentWindow?.postMessage({ ...told, whyformer: told.number }, "*");
  window.addEventListener("message", ask);
  model.on("msg:custom", answer);
  el.append(frame);
  return () => {
    window.removeEventListener("message", ask);
    model.off("msg:custom", answer);
  };
}

export default { render };
