//! Payloads, actions and checks. Episodes need a browser, so they are tested through the host.

use clawhost_sdk::display::{Button, Input};

use crate::actions::{Action, NAMES, Verdict, View, of_call, of_text, spec};
use crate::checks::{Check, Goal};
use crate::task::{Form, Work};

const TREE: &str = "page \"Shop\" http://task.test/\n[1] heading \"[7] Cart @1,1\" level=1 @512,40\n  text \"x\"\n[2] textbox \"N\" @20,30\nbutton \"Pay\" below\n";

fn view() -> View {
    let mut view = View {
        mouse: (5, 6),
        ..View::default()
    };
    view.read_marks(TREE);
    view
}

#[test]
fn marks_are_read_from_the_tree() {
    assert_eq!(view().marks, [(512, 40), (20, 30)]);
}

#[test]
fn every_offered_action_is_understood_in_both_forms() {
    let offered = spec().parameters;
    for name in NAMES {
        assert!(offered.contains(&format!("\"{name}\"")), "{name}");
    }
    let click = |x, y, button| Action::Inputs(vec![Input::Click((x, y, button))]);
    let input = |input| Action::Inputs(vec![input]);
    for (arguments, line, wanted) in [
        (
            r#"{"action": "left_click", "mark": 2}"#,
            "left_click [2]",
            click(20, 30, Button::Left),
        ),
        (
            r#"{"action": "right_click", "coordinate": [7, 8.9]}"#,
            "right_click 7,8",
            click(7, 8, Button::Right),
        ),
        (
            r#"{"action": "middle_click", "mark": 1}"#,
            "middle_click 1",
            click(512, 40, Button::Middle),
        ),
        (
            r#"{"action": "double_click", "mark": 1}"#,
            "Action: double_click 1",
            input(Input::DoubleClick((512, 40))),
        ),
        (
            r#"{"action": "mouse_move", "mark": 2}"#,
            "mouse_move 2",
            input(Input::Move((20, 30))),
        ),
        (
            r#"{"action": "left_click_drag", "from_mark": 1, "mark": 2}"#,
            "left_click_drag 1 2",
            input(Input::Drag(((512, 40), (20, 30)))),
        ),
        (
            r#"{"action": "left_click_drag", "coordinate": [1, 2]}"#,
            "left_click_drag 1,2",
            input(Input::Drag(((5, 6), (1, 2)))),
        ),
        (
            r#"{"action": "scroll", "pixels": -300}"#,
            "scroll -300",
            input(Input::Scroll((0, 300))),
        ),
        (
            r#"{"action": "hscroll", "pixels": 50}"#,
            "hscroll 50",
            input(Input::Scroll((50, 0))),
        ),
        (
            r#"{"action": "type", "text": "a b"}"#,
            "type a b",
            input(Input::Text("a b".to_owned())),
        ),
        (
            r#"{"action": "key", "keys": ["ctrl", "a"]}"#,
            "key ctrl+a",
            input(Input::Keys("ctrl+a".to_owned())),
        ),
        (
            r#"{"action": "wait", "time": 1.5}"#,
            "wait 1.5",
            input(Input::Wait(1500)),
        ),
        (
            r#"{"action": "navigate", "url": "a.html"}"#,
            "`navigate a.html`",
            Action::Navigate("a.html".to_owned()),
        ),
        (
            r#"{"action": "terminate", "status": "infeasible"}"#,
            "I see none.\nterminate infeasible",
            Action::Terminate(Verdict::Infeasible),
        ),
    ] {
        assert_eq!(of_call(arguments, &view()).unwrap(), wanted, "{arguments}");
        assert_eq!(of_text(line, &view()).unwrap(), wanted, "{line}");
    }
    let first = of_call(r#"{"action": "scroll", "mark": 2}"#, &view()).unwrap();
    let both = vec![Input::Move((20, 30)), Input::Scroll((0, 400))];
    assert_eq!(first, Action::Inputs(both));
}

#[test]
fn wrong_actions_say_what_is_wrong() {
    for (arguments, why) in [
        ("{", "no JSON"),
        ("{}", "no `action`"),
        (r#"{"action": "fly"}"#, "left_click_drag"),
        (r#"{"action": "left_click"}"#, "takes a mark"),
        (r#"{"action": "left_click", "mark": 3}"#, "1 to 2"),
        (r#"{"action": "left_click", "mark": 0}"#, "1 to 2"),
        (r#"{"action": "left_click", "coordinate": [1]}"#, "[X, Y]"),
        (r#"{"action": "type"}"#, "takes a text"),
        (r#"{"action": "terminate", "status": "done"}"#, "infeasible"),
    ] {
        let error = of_call(arguments, &view()).unwrap_err();
        assert!(error.contains(why), "{arguments}: {error}");
    }
    for (line, why) in [
        ("", "no action"),
        ("Click the button.", "left_click MARK"),
        ("left_click button", "neither a mark"),
        ("scroll far", "takes a number"),
    ] {
        let error = of_text(line, &view()).unwrap_err();
        assert!(error.contains(why), "{line}: {error}");
    }
}

#[test]
fn a_task_has_defaults() {
    let work =
        Work::parse(r#"{"pages": {"a.css": "b", "index.html": "c"}, "checks": [{"select": "a"}]}"#);
    let work = work.unwrap();
    assert_eq!((work.max_turns, work.form), (30, Form::Tools));
    assert_eq!(
        (work.profile.as_str(), work.start.as_str()),
        ("browser", "index.html")
    );
    let types: Vec<&str> = work
        .pages
        .iter()
        .map(|page| page.media_type.as_str())
        .collect();
    assert_eq!(types, ["text/css", "text/html; charset=utf-8"]);
}

#[test]
fn invalid_tasks_are_rejected() {
    for (payload, why) in [
        ("", "no JSON"),
        ("{}", "`pages` has no page"),
        (r#"{"pages": {"a": 1}}"#, "`pages.a`"),
        (r#"{"pages": {"a": ""}}"#, "`checks` has no check"),
        (
            r#"{"pages": {"a": ""}, "checks": [{}]}"#,
            "none of `select`",
        ),
        (
            r#"{"pages": {"a": ""}, "checks": [{"select": "a", "txt": "b"}]}"#,
            "`txt`",
        ),
        (
            r#"{"pages": {"a": ""}, "checks": [{"select": "a", "count": -1}]}"#,
            "`count`",
        ),
        (
            r#"{"pages": {"a": ""}, "checks": [{"variable": "a"}]}"#,
            "no `is`",
        ),
        (
            r#"{"pages": {"a": ""}, "checks": [{"url": "a", "is": 1}]}"#,
            "`is`",
        ),
        (
            r#"{"pages": {"a": ""}, "checks": [{"select": "a"}], "infeasible": true}"#,
            "remove",
        ),
        (
            r#"{"pages": {"a": ""}, "checks": [{"select": "a"}], "form": "voice"}"#,
            "`form`",
        ),
        (
            r#"{"pages": {"a": ""}, "checks": [{"select": "a"}], "max_turns": 0}"#,
            "`max_turns`",
        ),
    ] {
        let error = Work::parse(payload).err().unwrap();
        assert!(error.contains(why), "{payload}: {error}");
    }
}

#[test]
fn checks_compare_the_state_of_the_page() {
    let elements = r#"[{"tag": "input", "text": "Hello you", "value": "7", "checked": true, "selected": ["Red"],
        "visible": true, "attributes": {"data-x": "1"}}, {"text": "b"}]"#;
    for (check, result, why) in [
        (r#"{"select": "a"}"#, elements, None),
        (
            r#"{"select": "a", "value": "7", "checked": true, "selected": "Red", "count": 2}"#,
            elements,
            None,
        ),
        (
            r#"{"select": "a", "texts": ["Hello you", "b"], "contains": "lo y"}"#,
            elements,
            None,
        ),
        (
            r#"{"select": "a", "attributes": {"data-x": "1"}}"#,
            elements,
            None,
        ),
        (
            r#"{"select": "a", "attributes": {"data-y": "1"}}"#,
            elements,
            Some("no `data-y`"),
        ),
        (
            r#"{"select": "a", "text": "Hello"}"#,
            elements,
            Some("\"Hello you\""),
        ),
        (
            r#"{"select": "a", "checked": false}"#,
            elements,
            Some("`checked` is true"),
        ),
        (
            r#"{"select": "a", "count": 1}"#,
            elements,
            Some("2 elements"),
        ),
        (r#"{"select": "a"}"#, "[]", Some("no such element")),
        (r#"{"select": "a", "count": 0}"#, "[]", None),
        (
            r#"{"url": "http://a/"}"#,
            r#"{"url": "http://a/", "title": "t"}"#,
            None,
        ),
        (
            r#"{"url_contains": "/b"}"#,
            r#"{"url": "http://a/"}"#,
            Some("http://a/"),
        ),
        (
            r#"{"title": "t"}"#,
            r#"{"url": "http://a/", "title": "t"}"#,
            None,
        ),
        (
            r#"{"variable": "a.b", "is": [1, "2"]}"#,
            r#"[1, "2"]"#,
            None,
        ),
        (
            r#"{"variable": "a.b", "is": 1}"#,
            r#""1""#,
            Some("it is \"1\""),
        ),
        (r#"{"storage": "k", "is": "v"}"#, "null", Some("null")),
    ] {
        let check = Check::parse(&task_json::parse(check).unwrap()).unwrap();
        let found = check.failure(result);
        match why {
            None => assert_eq!(found, None),
            Some(why) => assert!(
                found.as_ref().is_some_and(|found| found.contains(why)),
                "{found:?}"
            ),
        }
    }
    let own = r#"{"query": "total", "argument": "x", "is": 3}"#;
    let own = Check::parse(&task_json::parse(own).unwrap()).unwrap();
    assert_eq!((own.query.as_str(), own.argument.as_str()), ("total", "x"));
    assert_eq!(own.failure("3"), None);
}

fn osworld(evaluator: &str) -> Result<Work, String> {
    let config = r#"[{"type": "launch", "parameters": {}}, {"type": "chrome_open_tabs", "parameters": {"urls_to_open": ["https://a.example/"]}}]"#;
    Work::parse(&format!(
        r#"{{"pages": {{"https://a.example/": ""}}, "config": {config}, "evaluator": {evaluator}}}"#
    ))
}

#[test]
fn rows_of_osworld_become_checks() {
    let url = r#"{"func": "is_expected_active_tab", "result": {"type": "active_url_from_accessTree", "goto_prefix": "https://"},
        "expected": {"type": "rule", "rules": {"type": "url", "url": "https://a.example/b"}}}"#;
    let work = osworld(url).unwrap();
    assert_eq!(work.start, "https://a.example/");
    let Goal::Checks(checks) = work.goal else {
        unreachable!("it is feasible");
    };
    assert_eq!(checks, [Check::url("https://a.example/b")]);
    let two = r#"{"func": ["is_expected_url_pattern_match", "check_direct_json_object"], "conj": "and", "result": [
        {"type": "active_tab_info"},
        {"type": "active_tab_html_parse", "category": "class", "class_singleObject": {"price total": "price"}}], "expected": [
        {"rules": {"expected": ["/cart", "id=1\\.2"]}}, {"rules": {"expected": {"price": "$3"}}}]}"#;
    let Goal::Checks(checks) = osworld(two).unwrap().goal else {
        unreachable!("it is feasible");
    };
    let price = task_json::Json::Text("$3".to_owned());
    assert_eq!(
        checks,
        [
            Check::url_contains("/cart"),
            Check::url_contains("id=1.2"),
            Check::element(".price.total", "text", price)
        ]
    );
    let infeasible = osworld(r#"{"func": "infeasible"}"#).unwrap();
    assert!(matches!(infeasible.goal, Goal::Infeasible));
}

#[test]
fn rows_of_osworld_that_are_about_more_than_a_page_are_rejected() {
    for (evaluator, why) in [
        ("{}", "no `func`"),
        (r#"{"func": "exact_match"}"#, "other numbers"),
        (
            r#"{"func": "exact_match", "result": {"type": "enable_do_not_track"}, "expected": {"rules": {"expected": "true"}}}"#,
            "enable_do_not_track",
        ),
        (r#"{"func": ["a", "b"], "conj": "or"}"#, "`conj`"),
        (
            r#"{"func": "is_expected_url_pattern_match", "result": {"type": "active_tab_info"}, "expected": {"rules": {"expected": ["a.*b"]}}}"#,
            "regular expression",
        ),
        (
            r#"{"func": "check_direct_json_object", "result": {"type": "active_tab_html_parse", "category": "label"}, "expected": {"rules": {"expected": {}}}}"#,
            "`label`",
        ),
        (
            r#"{"func": "check_direct_json_object", "result": {"type": "active_tab_html_parse", "category": "class", "class_singleObject": {"a": "b"}}, "expected": {"rules": {"expected": {"b": "1", "c": "2"}}}}"#,
            "other parts",
        ),
    ] {
        let error = osworld(evaluator).err().unwrap();
        assert!(error.contains(why), "{evaluator}: {error}");
    }
    let step = r#"{"pages": {"a": ""}, "config": [{"type": "execute"}], "evaluator": {"func": "infeasible"}}"#;
    let error = Work::parse(step).err().unwrap();
    assert!(error.contains("`execute`"), "{error}");
}
