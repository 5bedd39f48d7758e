//! Plugin containment: thirty hostile components, none of which harms the host. Each ends with its typed fault or is
//! rejected with a reason, and the host keeps serving.
//!
//! One test per case, `case_01_…` to `case_30_…`, in the order of the list in the design. Each file holds related
//! cases; `guest` builds components from core WebAssembly, `hosting` runs them.

mod handles;
mod hosting;
mod identity;
mod life;
mod loading;
mod memory;
mod network;
mod output;
mod results;
mod steering;
mod time;

use clawhost_tests::guest;
