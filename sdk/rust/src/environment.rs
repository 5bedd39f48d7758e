//! The environment trait and its way into a component.

pub use crate::bindings::environment::exports::clawhost::plugin::environment::{
    Observation, Outcome, Status, Task, Transition,
};
use crate::{Message, PluginError};

/// A world that the policy acts in. A value of the type is one episode.
pub trait Environment: Sized + 'static {
    /// Starts an episode. The same task and seed give the same world.
    ///
    /// # Errors
    /// [`PluginError::InvalidInput`] for a task that is not one of this environment's.
    fn reset(task: Task, seed: u64) -> Result<(Self, Observation), PluginError>;

    /// Acts.
    ///
    /// # Errors
    /// [`PluginError`] says why the action led nowhere; the episode goes on.
    fn step(&mut self, action: Message) -> Result<Transition, PluginError>;

    /// Grades the episode; called at most once, after the last step.
    ///
    /// # Errors
    /// [`PluginError`] when there is no grade: the episode then trains nothing.
    fn grade(&mut self) -> Result<Outcome, PluginError>;

    /// Releases what the episode holds. By default there is nothing to release.
    ///
    /// # Errors
    /// [`PluginError`] when something could not be released.
    fn close(&mut self) -> Result<(), PluginError> {
        Ok(())
    }
}

impl Observation {
    /// Messages without tools.
    pub fn of(messages: Vec<Message>) -> Observation {
        Observation {
            messages,
            tools: Vec::new(),
        }
    }
}

/// Makes a type that implements [`Environment`] the component's environment. Does nothing in
/// native builds, where the type is tested directly.
#[macro_export]
macro_rules! export_environment {
    ($environment:ty) => {
        #[cfg(target_arch = "wasm32")]
        const _: () = {
            use $crate::bindings::environment::exports::clawhost::plugin::environment as export;

            struct Component;

            struct Episode(::core::cell::RefCell<$environment>);

            impl export::Guest for Component {
                type Session = Episode;
            }

            impl export::GuestSession for Episode {
                fn reset(
                    task: export::Task,
                    seed: u64,
                ) -> ::core::result::Result<
                    (export::Session, export::Observation),
                    $crate::PluginError,
                > {
                    $crate::log::report_panics();
                    let (episode, seen) = <$environment as $crate::Environment>::reset(task, seed)?;
                    let episode = Episode(::core::cell::RefCell::new(episode));
                    Ok((export::Session::new(episode), seen))
                }

                fn step(
                    &self,
                    action: $crate::Message,
                ) -> ::core::result::Result<export::Transition, $crate::PluginError> {
                    $crate::Environment::step(&mut *self.0.borrow_mut(), action)
                }

                fn grade(&self) -> ::core::result::Result<export::Outcome, $crate::PluginError> {
                    $crate::Environment::grade(&mut *self.0.borrow_mut())
                }

                fn close(&self) -> ::core::result::Result<(), $crate::PluginError> {
                    $crate::Environment::close(&mut *self.0.borrow_mut())
                }
            }

            $crate::bindings::environment::export_environment_world!(
                Component with_types_in $crate::bindings::environment
            );
        };
        #[cfg(not(target_arch = "wasm32"))]
        const _: fn(
            $crate::environment::Task,
            u64,
        ) -> ::core::result::Result<
            ($environment, $crate::environment::Observation),
            $crate::PluginError,
        > = <$environment as $crate::Environment>::reset;
    };
}
