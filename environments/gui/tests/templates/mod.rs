//! Pages with something to do.

mod held_out;

pub(crate) use held_out::HELD_OUT;

/// Pages, what is to be done there, and values that make several tasks of it.
pub(crate) struct Template {
    pub(crate) name: &'static str,
    pub(crate) family: &'static str,
    /// Paths and bodies; the first one is shown first.
    pub(crate) pages: &'static [(&'static str, &'static str)],
    pub(crate) instruction: &'static str,
    /// A JSON array; empty if the task is infeasible.
    pub(crate) checks: &'static str,
    /// Marks in all of these texts, and what replaces them in each variant.
    pub(crate) values: &'static [(&'static str, &'static [&'static str])],
}

pub(crate) const NAMES: &[&str] = &["Ada", "Grace", "Linus", "Barbara"];

pub(crate) const TRAIN: &[Template] = &[
    Template {
        name: "contact",
        family: "forms",
        pages: &[(
            "index.html",
            r#"<title>Contact</title><h1>Contact</h1>
<form><p><label>Name <input id="name"></label></p><p><label>Mail <input id="mail" type="email"></label></p>
<button>Save</button></form><p id="status" role="status"></p>
<script>var saved = null;
document.querySelector("form").onsubmit = (event) => { event.preventDefault();
  const [name, mail] = ["name", "mail"].map((id) => document.getElementById(id).value);
  if (!name || !mail) return; saved = {name, mail};
  document.getElementById("status").textContent = "Saved " + name; };</script>"#,
        )],
        instruction: "Save a contact with the name %NAME% and the mail address %MAIL%.",
        checks: r##"[{"variable": "saved.name", "is": "%NAME%"}, {"variable": "saved.mail", "is": "%MAIL%"}, {"select": "#status", "text": "Saved %NAME%"}]"##,
        values: &[
            ("%NAME%", NAMES),
            (
                "%MAIL%",
                &[
                    "ada@a.example",
                    "grace@b.example",
                    "linus@c.example",
                    "barbara@d.example",
                ],
            ),
        ],
    },
    Template {
        name: "booking",
        family: "forms",
        pages: &[(
            "index.html",
            r#"<title>Booking</title><h1>Book a room</h1>
<form><p><label>Guests <input id="guests" type="number" min="1" max="9"></label></p>
<p><label>Room <select id="room"><option>Attic<option>Garden<option>Lake<option>Tower</select></label></p>
<p><label><input id="breakfast" type="checkbox"> Breakfast</label></p><button>Book</button></form><p id="status" role="status"></p>
<script>var booking = null;
document.querySelector("form").onsubmit = (event) => { event.preventDefault();
  const by = (id) => document.getElementById(id);
  booking = {guests: by("guests").value, room: by("room").value, breakfast: by("breakfast").checked};
  by("status").textContent = "Booked"; };</script>"#,
        )],
        instruction: "Book the room %ROOM% for %GUESTS% guests, with breakfast.",
        checks: r##"[{"variable": "booking.guests", "is": "%GUESTS%"}, {"variable": "booking.room", "is": "%ROOM%"}, {"variable": "booking.breakfast", "is": true}]"##,
        values: &[
            ("%GUESTS%", &["2", "3", "4", "6"]),
            ("%ROOM%", &["Garden", "Lake", "Tower", "Garden"]),
        ],
    },
    Template {
        name: "settings",
        family: "choices",
        pages: &[(
            "index.html",
            r#"<title>Settings</title><h1>Settings</h1>
<p><label><input type="checkbox" id="sound"> Sound</label></p><p><label><input type="checkbox" id="mail" checked> Mail</label></p>
<p><label><input type="checkbox" id="night"> Night mode</label></p>
<fieldset><legend>Size</legend><label><input type="radio" name="size" value="Small"> Small</label>
<label><input type="radio" name="size" value="Medium" checked> Medium</label>
<label><input type="radio" name="size" value="Large"> Large</label></fieldset>
<script>document.onchange = () => { const on = (id) => document.getElementById(id).checked;
  localStorage.settings = ["sound", "mail", "night"].filter(on).join(" ") + "/" + document.querySelector("[name=size]:checked").value; };</script>"#,
        )],
        instruction: "Turn %ON% on and Mail off, and set the size to %SIZE%.",
        checks: r##"[{"select": "#%ID%", "checked": true}, {"select": "#mail", "checked": false}, {"storage": "settings", "is": "%ID%/%SIZE%"}]"##,
        values: &[
            ("%ON%", &["Sound", "Night mode", "Sound", "Night mode"]),
            ("%ID%", &["sound", "night", "sound", "night"]),
            ("%SIZE%", &["Large", "Large", "Small", "Small"]),
        ],
    },
    Template {
        name: "capital",
        family: "choices",
        pages: &[(
            "index.html",
            r#"<title>Quiz</title><h1>What is the capital of %LAND%?</h1>
<form><p><label><input type="radio" name="a" value="Oslo"> Oslo</label></p><p><label><input type="radio" name="a" value="Rome"> Rome</label></p>
<p><label><input type="radio" name="a" value="Lima"> Lima</label></p><p><label><input type="radio" name="a" value="Cairo"> Cairo</label></p>
<button>Answer</button></form><p id="status" role="status"></p>
<script>var answer = null;
document.querySelector("form").onsubmit = (event) => { event.preventDefault();
  answer = document.querySelector("[name=a]:checked")?.value ?? null;
  document.getElementById("status").textContent = answer ? "You said " + answer : "Choose first"; };</script>"#,
        )],
        instruction: "Answer the question of the quiz.",
        checks: r##"[{"variable": "answer", "is": "%CITY%"}, {"select": "#status", "text": "You said %CITY%"}]"##,
        values: &[
            ("%LAND%", &["Norway", "Italy", "Peru", "Egypt"]),
            ("%CITY%", &["Oslo", "Rome", "Lima", "Cairo"]),
        ],
    },
    Template {
        name: "todo",
        family: "lists",
        pages: &[(
            "index.html",
            r#"<title>To do</title><h1>To do</h1><label>New <input id="new" autofocus></label><ul></ul>
<script>const list = document.querySelector("ul");
const add = (text) => { const item = document.createElement("li"); const label = document.createElement("label");
  const box = document.createElement("input"); box.type = "checkbox"; label.append(box, " " + text); item.append(label); list.append(item); };
["Water the plants", "Call the bank"].forEach(add);
document.getElementById("new").onkeydown = (event) => {
  if (event.key === "Enter" && event.target.value) { add(event.target.value); event.target.value = ""; } };</script>"#,
        )],
        instruction: "Add the entry `%ENTRY%` to the list, and tick off `%DONE%`.",
        checks: r##"[{"select": "li", "texts": ["Water the plants", "Call the bank", "%ENTRY%"]}, {"select": "li:nth-child(%N%) input", "checked": true}, {"select": "li input:checked", "count": 1}]"##,
        values: &[
            (
                "%ENTRY%",
                &["Buy milk", "Read a book", "Fix the lamp", "Write to Ada"],
            ),
            (
                "%DONE%",
                &[
                    "Water the plants",
                    "Call the bank",
                    "Call the bank",
                    "Water the plants",
                ],
            ),
            ("%N%", &["1", "2", "2", "1"]),
        ],
    },
    Template {
        name: "inbox",
        family: "lists",
        pages: &[(
            "index.html",
            r#"<title>Inbox</title><h1>Inbox</h1><ul></ul>
<script>const mails = [["Ada", "Report"], ["Shop", "50% off"], ["Grace", "Lunch"], ["Lottery", "You won"], ["Linus", "Patch"]];
for (const [from, subject] of mails) { const item = document.createElement("li"); item.dataset.from = from;
  const remove = document.createElement("button"); remove.textContent = "Delete " + from;
  remove.onclick = () => item.remove(); item.append(from + ": " + subject + " ", remove); document.querySelector("ul").append(item); }</script>"#,
        )],
        instruction: "Delete the mails of %FIRST% and of %SECOND%, and no others.",
        checks: r##"[{"select": "[data-from=%FIRST%]", "count": 0}, {"select": "[data-from=%SECOND%]", "count": 0}, {"select": "li", "count": 3}]"##,
        values: &[
            ("%FIRST%", &["Shop", "Ada", "Grace", "Lottery"]),
            ("%SECOND%", &["Lottery", "Linus", "Shop", "Ada"]),
        ],
    },
    Template {
        name: "files",
        family: "menus",
        pages: &[(
            "index.html",
            r#"<title>Files</title><style>[role=menu] { position: absolute; background: #eee; padding: 8px } button { display: block }</style>
<h1>Files</h1><p>Each file has a context menu.</p><ul></ul><div role="menu" hidden><button role="menuitem">Star</button><button role="menuitem">Archive</button></div>
<script>const menu = document.querySelector("[role=menu]"); let chosen = null;
for (const name of ["notes.txt", "photo.png", "plan.pdf"]) { const item = document.createElement("li"); item.textContent = name; item.dataset.state = "New";
  item.oncontextmenu = (event) => { event.preventDefault(); chosen = item; menu.hidden = false; menu.style.left = event.pageX + "px"; menu.style.top = event.pageY + "px"; };
  document.querySelector("ul").append(item); }
for (const entry of menu.children) entry.onclick = () => { chosen.dataset.state = entry.textContent; menu.hidden = true; };</script>"#,
        )],
        instruction: "%DO% the file %FILE%, with its context menu.",
        checks: r##"[{"select": "li:nth-child(%N%)", "attributes": {"data-state": "%DO%"}}, {"select": "[data-state=New]", "count": 2}]"##,
        values: &[
            ("%DO%", &["Star", "Archive", "Archive", "Star"]),
            (
                "%FILE%",
                &["photo.png", "notes.txt", "plan.pdf", "plan.pdf"],
            ),
            ("%N%", &["2", "1", "3", "3"]),
        ],
    },
    Template {
        name: "colours",
        family: "menus",
        pages: &[(
            "index.html",
            r#"<title>Colours</title><style>nav ul { display: none } nav:hover ul { display: block } nav { width: 200px; background: #eee; padding: 20px }</style>
<nav tabindex="0" aria-label="Colours">Colours (point here)<ul><li><button>Red</button></li><li><button>Green</button></li><li><button>Blue</button></li><li><button>Black</button></li></ul></nav>
<p id="status" role="status">No colour</p>
<script>for (const button of document.querySelectorAll("button")) button.onclick = () => document.getElementById("status").textContent = button.textContent;</script>"#,
        )],
        instruction: "Choose the colour %COLOUR% in the menu, which opens when the mouse is over it.",
        checks: r##"[{"select": "#status", "text": "%COLOUR%"}]"##,
        values: &[("%COLOUR%", &["Red", "Green", "Blue", "Black"])],
    },
    Template {
        name: "help",
        family: "navigation",
        pages: &[
            (
                "index.html",
                r#"<title>Help</title><h1>Help</h1><p><a href="travel.html">Travel</a></p><p><a href="money.html">Money</a></p>"#,
            ),
            (
                "travel.html",
                r#"<title>Travel</title><h1>Travel</h1><p><a href="article.html?id=trains">Trains</a></p><p><a href="article.html?id=visa">Visa</a></p><p><a href="index.html">Back</a></p>"#,
            ),
            (
                "money.html",
                r#"<title>Money</title><h1>Money</h1><p><a href="article.html?id=tax">Tax</a></p><p><a href="article.html?id=rent">Rent</a></p><p><a href="index.html">Back</a></p>"#,
            ),
            (
                "article.html",
                r#"<title>Article</title><h1></h1><button>Mark as read</button>
<script>const id = new URLSearchParams(location.search).get("id"); document.querySelector("h1").textContent = id;
document.querySelector("button").onclick = () => { localStorage.read = id; };</script>"#,
            ),
        ],
        instruction: "Find the article about %TOPIC% and mark it as read.",
        checks: r##"[{"storage": "read", "is": "%ID%"}, {"url": "http://task.test/article.html?id=%ID%"}]"##,
        values: &[
            ("%TOPIC%", &["trains", "visas", "taxes", "rent"]),
            ("%ID%", &["trains", "visa", "tax", "rent"]),
        ],
    },
    Template {
        name: "shop",
        family: "navigation",
        pages: &[
            (
                "index.html",
                r#"<title>Shop</title><h1>Shop</h1><ul><li><a href="product.html?p=tea">Tea</a><li><a href="product.html?p=cup">Cup</a><li><a href="product.html?p=pot">Pot</a></ul><a href="cart.html">Cart</a>"#,
            ),
            (
                "product.html",
                r#"<title>Product</title><h1></h1><button>Add to cart</button> <a href="index.html">Shop</a> <a href="cart.html">Cart</a>
<script>const p = new URLSearchParams(location.search).get("p"); document.querySelector("h1").textContent = p;
document.querySelector("button").onclick = () => { localStorage.cart = (localStorage.cart ?? "") + p + " "; };</script>"#,
            ),
            (
                "cart.html",
                r#"<title>Cart</title><h1>Cart</h1><p id="cart"></p><a href="checkout.html">Check out</a> <a href="index.html">Shop</a>
<script>document.getElementById("cart").textContent = localStorage.cart ?? "empty";</script>"#,
            ),
            (
                "checkout.html",
                r#"<title>Check out</title><h1>Check out</h1><form><label>Name <input id="name"></label> <label><input id="gift" type="checkbox"> Gift wrap</label> <button>Order</button></form><p id="status" role="status"></p>
<script>var order = null; document.querySelector("form").onsubmit = (event) => { event.preventDefault();
  order = {name: document.getElementById("name").value, gift: document.getElementById("gift").checked, cart: (localStorage.cart ?? "").trim()};
  document.getElementById("status").textContent = "Ordered for " + order.name; };</script>"#,
            ),
        ],
        instruction: "Order the products %FIRST% and then %SECOND%, one of each, for %NAME%, with gift wrap.",
        checks: r##"[{"variable": "order.cart", "is": "%FIRST% %SECOND%"}, {"variable": "order.name", "is": "%NAME%"}, {"variable": "order.gift", "is": true}, {"select": "#status", "text": "Ordered for %NAME%"}]"##,
        values: &[
            ("%FIRST%", &["tea", "cup", "pot", "tea"]),
            ("%SECOND%", &["cup", "pot", "tea", "pot"]),
            ("%NAME%", NAMES),
        ],
    },
    Template {
        name: "language",
        family: "infeasible",
        pages: &[(
            "index.html",
            r#"<title>Language</title><h1>Language</h1><p><button>English</button> <button>French</button> <button>Spanish</button></p><p id="status" role="status">English</p>
<script>for (const button of document.querySelectorAll("button")) button.onclick = () => document.getElementById("status").textContent = button.textContent;</script>"#,
        )],
        instruction: "Set the language to %LANGUAGE%.",
        checks: "",
        values: &[("%LANGUAGE%", &["Latin", "Klingon", "Welsh", "Basque"])],
    },
];
