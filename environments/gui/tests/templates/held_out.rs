//! Families that no policy is trained on.

use super::{NAMES, Template};

pub(crate) const HELD_OUT: &[Template] = &[
    Template {
        name: "board",
        family: "dragging",
        pages: &[(
            "index.html",
            r#"<title>Board</title><style>section { float: left; width: 220px; min-height: 300px; margin: 10px; background: #eee } [draggable] { padding: 12px; background: #fff; margin: 6px }</style>
<section aria-label="Open"><div draggable="true" role="button" tabindex="0">Paint</div><div draggable="true" role="button" tabindex="0">Sand</div><div draggable="true" role="button" tabindex="0">Clean</div></section>
<section aria-label="Doing"></section><section aria-label="Done"></section>
<script>let held = null;
for (const card of document.querySelectorAll("[draggable]")) card.ondragstart = (event) => { held = card; event.dataTransfer.setData("text/plain", card.textContent); };
for (const column of document.querySelectorAll("section")) { column.ondragover = (event) => event.preventDefault();
  column.ondrop = (event) => { event.preventDefault(); column.append(held); }; }</script>"#,
        )],
        instruction: "Drag the card %CARD% to the column %COLUMN%.",
        checks: r##"[{"select": "[aria-label=%COLUMN%] div", "texts": ["%CARD%"]}, {"select": "[aria-label=Open] div", "count": 2}]"##,
        values: &[
            ("%CARD%", &["Paint", "Sand", "Clean", "Sand"]),
            ("%COLUMN%", &["Done", "Doing", "Done", "Done"]),
        ],
    },
    Template {
        name: "volume",
        family: "dragging",
        pages: &[(
            "index.html",
            r#"<title>Volume</title><style>#track { position: relative; width: 400px; height: 20px; background: #ccc; margin: 60px } #knob { position: absolute; width: 20px; height: 20px; background: #36c }</style>
<h1>%WHAT%</h1><div id="track"><div id="knob" role="slider" tabindex="0" aria-label="%WHAT%" aria-valuenow="0"></div></div><p>From 0 on the left to 100 on the right.</p>
<script>const [track, knob] = ["track", "knob"].map((id) => document.getElementById(id)); let down = false;
knob.onmousedown = (event) => { down = true; event.preventDefault(); }; document.onmouseup = () => { down = false; };
document.onmousemove = (event) => { if (!down) return; const x = Math.min(380, Math.max(0, event.clientX - track.getBoundingClientRect().left - 10));
  knob.style.left = x + "px"; knob.setAttribute("aria-valuenow", Math.round(x / 3.8)); };</script>"#,
        )],
        instruction: "Drag the slider to 100.",
        checks: r##"[{"select": "#knob", "attributes": {"aria-valuenow": "100"}}]"##,
        values: &[("%WHAT%", &["Volume", "Brightness", "Contrast", "Speed"])],
    },
    Template {
        name: "scores",
        family: "tables",
        pages: &[(
            "index.html",
            r#"<title>Scores</title><h1>Scores</h1><table><thead><tr><th><button>Name</button></th><th><button>Points</button></th><th></th></tr></thead><tbody></tbody></table><p id="status" role="status"></p>
<script>const rows = [["Grace", %A%], ["Ada", %B%], ["Linus", %C%]]; const body = document.querySelector("tbody");
const show = (by) => { body.replaceChildren(...rows.sort((a, b) => by === 0 ? a[0].localeCompare(b[0]) : b[1] - a[1]).map(([name, points]) => {
  const row = document.createElement("tr"); for (const text of [name, points]) row.insertCell().textContent = text;
  const pick = document.createElement("button"); pick.textContent = "Pick " + name; pick.onclick = () => document.getElementById("status").textContent = "Picked " + name;
  row.insertCell().append(pick); return row; })); };
show(0); document.querySelectorAll("th button").forEach((button, by) => button.onclick = () => show(by));</script>"#,
        )],
        instruction: "Sort the table by points, and pick the name with the most points.",
        checks: r##"[{"select": "td:first-child", "texts": %ORDER%}, {"select": "#status", "text": "Picked %BEST%"}]"##,
        values: &[
            ("%A%", &["3", "9", "5", "1"]),
            ("%B%", &["7", "2", "4", "8"]),
            ("%C%", &["5", "6", "6", "4"]),
            (
                "%ORDER%",
                &[
                    r#"["Ada", "Linus", "Grace"]"#,
                    r#"["Grace", "Linus", "Ada"]"#,
                    r#"["Linus", "Grace", "Ada"]"#,
                    r#"["Ada", "Linus", "Grace"]"#,
                ],
            ),
            ("%BEST%", &["Ada", "Grace", "Linus", "Ada"]),
        ],
    },
    Template {
        name: "rename",
        family: "editing",
        pages: &[(
            "index.html",
            r#"<title>Note</title><h1 tabindex="0">Untitled</h1><p>A double click on the title edits it, Enter keeps it.</p>
<script>const title = document.querySelector("h1");
title.ondblclick = () => { const field = document.createElement("input"); field.value = title.textContent; field.setAttribute("aria-label", "Title");
  title.replaceWith(field); field.focus(); field.setSelectionRange(0, 0);
  field.onkeydown = (event) => { if (event.key === "Enter") { title.textContent = field.value; field.replaceWith(title); } }; };</script>"#,
        )],
        instruction: "Change the title of the note to %NAME%.",
        checks: r##"[{"select": "h1", "text": "%NAME%"}, {"select": "input", "count": 0}]"##,
        values: &[("%NAME%", NAMES)],
    },
    Template {
        name: "terms",
        family: "scrolling",
        pages: &[(
            "index.html",
            r#"<title>Terms</title><h1>Terms of %WHAT%</h1><div style="height: 3000px">Read to the end.</div><button>Agree</button><p id="status" role="status"></p>
<script>document.querySelector("button").onclick = () => document.getElementById("status").textContent = "Agreed";</script>"#,
        )],
        instruction: "Agree to the terms, with the button at the end of the page.",
        checks: r##"[{"select": "#status", "text": "Agreed"}]"##,
        values: &[("%WHAT%", &["use", "sale", "delivery", "payment"])],
    },
    Template {
        name: "palette",
        family: "shortcuts",
        pages: &[(
            "index.html",
            r#"<title>Editor</title><h1>Editor</h1><p>Press ctrl+k for commands.</p><dialog><label>Command <input></label></dialog><p id="status" role="status"></p>
<script>const dialog = document.querySelector("dialog"), field = document.querySelector("input"); var commands = [];
document.onkeydown = (event) => { if (event.ctrlKey && event.key === "k") { event.preventDefault(); dialog.showModal(); } };
field.onkeydown = (event) => { if (event.key !== "Enter") return; event.preventDefault(); commands.push(field.value); dialog.close();
  document.getElementById("status").textContent = "Ran " + field.value; };</script>"#,
        )],
        instruction: "Run the command `%COMMAND%`.",
        checks: r##"[{"variable": "commands", "is": ["%COMMAND%"]}, {"select": "#status", "text": "Ran %COMMAND%"}]"##,
        values: &[(
            "%COMMAND%",
            &["save all", "Close Tab", "go to line 7", "undo"],
        )],
    },
];
