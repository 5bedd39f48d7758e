//! Plugin components built from core WebAssembly text and the WIT world of their kind.
//!
//! The component encoding is that of every language's tools, so a fixture is hostile only where its text is. Addresses
//! below 512 are for results, 512 to 1,023 for the fixture's data, 1,024 to 4,095 are free; memory that the host
//! allocates starts at 4,096.

mod wasi;

use std::path::Path;

use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

/// Builder of a component.
#[derive(Clone)]
pub struct Guest {
    contract: &'static str,
    /// Interfaces of the world.
    imports: Vec<String>,
    /// Core imports.
    imported: String,
    /// Additional core module text.
    core: String,
    /// Exported core functions.
    exported: String,
    memory: String,
    realloc: String,
}

/// Bump allocator that grows the memory on demand.
const REALLOC: &str = "
  (local $at i32)
  (local.set $at (i32.and (i32.add (global.get $top) (i32.const 15)) (i32.const -16)))
  (global.set $top (i32.add (local.get $at) (local.get 3)))
  (block $fits
    (br_if $fits (i32.le_u (global.get $top) (i32.mul (memory.size) (i32.const 65536))))
    (drop (memory.grow (i32.const 16))))
  (local.get $at)";

/// Parameters of `score-turn` and `extract`.
const OF_A_TURN: &str =
    "(param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 f32 i32 i32) (param $turn i32)";

impl Guest {
    fn new(contract: &'static str) -> Guest {
        Guest {
            contract,
            imports: Vec::new(),
            imported: String::new(),
            core: String::new(),
            exported: String::new(),
            memory: "(memory (export \"memory\") 1)".into(),
            realloc: REALLOC.into(),
        }
    }

    /// A judge whose `score-turn` is `body`, which returns the address of the result. `$n` is a free local.
    pub fn judge(body: &str) -> Guest {
        Guest::new("judge").exporting("score-turn", OF_A_TURN, body)
    }

    /// A judge that returns this reward (as WebAssembly text).
    pub fn reward(reward: &str) -> Guest {
        Guest::judge(&verdict(reward, ""))
    }

    /// A group judge; `$count` is the size of the group.
    pub fn group_judge(body: &str) -> Guest {
        Guest::new("group-judge").exporting("score-group", "(param i32) (param $count i32)", body)
    }

    /// A hint extractor.
    pub fn hint(body: &str) -> Guest {
        Guest::new("hint-extractor").exporting("extract", OF_A_TURN, body)
    }

    /// A loss with partials by logprobs; `$batch` is the address of the batch.
    pub fn loss(body: &str) -> Guest {
        let describe = "(i32.store8 (i32.const 256) (i32.const 1)) (i32.const 256)";
        Guest::new("loss")
            .exporting("describe", "", describe)
            .exporting("evaluate", "(param $batch i32)", body)
    }

    /// An advantage estimator; `$count` is the number of sequences.
    pub fn advantage(body: &str) -> Guest {
        Guest::new("advantage").exporting("compute", "(param i32) (param $count i32)", body)
    }

    /// A well-behaved environment; `tricks` replace the bodies of `reset`, `step`, `grade`, `close` and `[dtor]`.
    pub fn environment(tricks: &[(&str, &str)]) -> Guest {
        let body = |of: &str| {
            let trick = tricks.iter().find(|(name, _)| *name == of);
            trick.map(|(_, body)| *body)
        };
        let plain = |of: &str| cleared(body(of).unwrap_or("(i32.const 0)"));
        let new = ("clawhost:plugin/environment@0.1.2", "[resource-new]session");
        let mut guest = Guest::new("environment");
        guest.imported.push_str(&format!(
            "(import \"[export]{}\" \"{}\" (func $new (param i32) (result i32)))",
            new.0, new.1
        ));
        let start = "(i32.store (i32.const 4) (call $new (i32.const 77))) (i32.const 0)";
        let reset = body("reset").unwrap_or(start);
        let actions = "(param $self i32) (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32)";
        guest
            .exporting("[static]session.reset", "(param i32 i32 i32 i32 i32 i32 i64)", reset)
            .exporting("[method]session.step", actions, &plain("step"))
            .exporting("[method]session.grade", "(param $self i32)", &plain("grade"))
            .exporting("[method]session.close", "(param $self i32)", &plain("close"))
            .with(&format!(
                "(func (export \"clawhost:plugin/environment@0.1.2#[dtor]session\") (param $self i32) {})",
                body("[dtor]").unwrap_or_default()
            ))
    }

    fn exporting(mut self, function: &str, parameters: &str, body: &str) -> Guest {
        self.exported.push_str(&format!(
            "(func (export \"clawhost:plugin/{}@0.1.2#{function}\") {parameters} (result i32) (local $n i32) {body})\n",
            self.contract
        ));
        self
    }

    /// Imports a function; `id` is its name in the module and its core signature.
    pub fn calling(mut self, interface: &str, function: &str, id: &str) -> Guest {
        if !self.imports.iter().any(|known| known == interface) {
            self.imports.push(interface.to_owned());
        }
        self.imported.push_str(&format!(
            "(import \"{interface}\" \"{function}\" (func {id}))\n"
        ));
        self
    }

    /// Adds text to the core module.
    pub fn with(mut self, core: &str) -> Guest {
        self.core.push_str(core);
        self
    }

    /// Adds bytes at 512.
    pub fn data(self, text: &str) -> Guest {
        self.with(&format!("(data (i32.const 512) \"{text}\")"))
    }

    /// Replaces the default memory of one page; must be exported as `memory`.
    pub fn memory(mut self, memory: &str) -> Guest {
        memory.clone_into(&mut self.memory);
        self
    }

    /// Replaces the body of `cabi_realloc`.
    pub fn realloc(mut self, body: &str) -> Guest {
        body.clone_into(&mut self.realloc);
        self
    }

    /// Adds a post-return function of `score-turn`.
    pub fn afterwards(self, body: &str) -> Guest {
        self.with(&format!(
            "(func (export \"cabi_post_clawhost:plugin/judge@0.1.2#score-turn\") (param i32) {body})"
        ))
    }

    /// Encodes the component.
    pub fn wasm(&self) -> Vec<u8> {
        let module = format!(
            "(module {} {} (global $top (mut i32) (i32.const 4096))
               (func $realloc (export \"cabi_realloc\") (param i32 i32 i32 i32) (result i32) {})
               {} {})",
            self.imported, self.memory, self.realloc, self.core, self.exported
        );
        let mut module = wat::parse_str(&module).unwrap_or_else(|e| panic!("{e}\n{module}"));
        let mut world = String::new();
        for import in &self.imports {
            world.push_str(&format!("import {import};"));
        }
        let wit = format!(
            "package test:fixture; {} world fixture {{ {world} export clawhost:plugin/{}@0.1.2; }}",
            wasi::PACKAGES,
            self.contract
        );
        let mut resolve = Resolve::default();
        let contract = Path::new(env!("CARGO_MANIFEST_DIR")).join("../wit");
        resolve.push_dir(&contract).unwrap();
        let package = resolve
            .push_str("fixture.wit", &wit)
            .unwrap_or_else(|e| panic!("{e:#}"));
        let world = resolve.select_world(&[package], Some("fixture")).unwrap();
        embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8).unwrap();
        let encoder = ComponentEncoder::default();
        let mut encoder = encoder.module(&module).unwrap_or_else(|e| panic!("{e:#}"));
        encoder.encode().unwrap_or_else(|e| panic!("{e:#}"))
    }
}

/// Zeroes the result area, so that an earlier result is not read again.
fn cleared(body: &str) -> String {
    format!("(memory.fill (i32.const 0) (i32.const 0) (i32.const 64)) {body}")
}

/// Writes an accepted verdict at address 0 and returns it; `more` runs in between.
pub fn verdict(reward: &str, more: &str) -> String {
    format!(
        "(f32.store (i32.const 4) (f32.const {reward}))
         (i32.store8 (i32.const 8) (i32.const 1))
         {more}
         (i32.const 0)"
    )
}

/// Stores four bytes.
pub fn store(at: u32, value: u32) -> String {
    format!("(i32.store (i32.const {at}) (i32.const {value}))")
}

/// Call context and settings.
pub const CONTEXT: &str = "clawhost:plugin/context@0.1.2";
/// Log lines.
pub const LOG: &str = "clawhost:plugin/log@0.1.2";
/// Models.
pub const MODEL: &str = "clawhost:plugin/model@0.1.2";
/// Durable state.
pub const STATE: &str = "clawhost:plugin/state@0.1.2";
/// HTTP exchanges.
pub const HTTP: &str = "clawhost:plugin/http@0.1.2";

impl Guest {
    /// Imports `$setting(key, result address)`.
    pub fn with_settings(self) -> Guest {
        self.calling(CONTEXT, "setting", "$setting (param i32 i32 i32)")
    }

    /// Imports `$log(level, message, fields)`.
    pub fn with_log(self) -> Guest {
        self.calling(LOG, "write", "$log (param i32 i32 i32 i32 i32)")
    }

    /// Imports `$complete(request, result address)`.
    pub fn with_model(self) -> Guest {
        self.calling(MODEL, "complete", "$complete (param i32 i32)")
    }

    /// Imports `$score(model, messages, completion, result address)`.
    pub fn with_scores(self) -> Guest {
        let call = "$score (param i32 i32 i32 i32 i32 i32 i32)";
        self.calling(MODEL, "score", call)
    }

    /// Imports `$get` and `$put`.
    pub fn with_state(self) -> Guest {
        self.calling(STATE, "get", "$get (param i32 i32 i32)")
            .calling(STATE, "put", "$put (param i32 i32 i32 i32 i32 i64 i32)")
    }
}
