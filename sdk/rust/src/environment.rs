//! The environment trait and its export macro.

pub use crate::bindings::environment::exports::clawhost::plugin::environment::{
    Observation, Outcome, Status, Task, Transition,
};
use crate::{Message, PluginError};

/// An environment that the policy acts in. A value of the type is one episode.
pub trait Environment: Sized + 'static {
    /// Starts an episode. The same task and seed must give the same initial state.
    ///
    /// # Errors
    /// [`PluginError::InvalidInput`] for a task that this environment does not have.
    fn reset(task: Task, seed: u64) -> Result<(Self, Observation), PluginError>;

    /// Performs an action.
    ///
    /// # Errors
    /// [`PluginError`] when the action fails; the episode continues.
    fn step(&mut self, action: Message) -> Result<Transition, PluginError>;

    /// Grades the episode; called at most once, after the last step.
    ///
    /// # Errors
    /// [`PluginError`] when the episode cannot be graded; it is then not used for training.
    fn grade(&mut self) -> Result<Outcome, PluginError>;

    /// Releases the resources of the episode. The default does nothing.
    ///
    /// # Errors
    /// [`PluginError`] when a resource could not be released.
    fn close(&mut self) -> Result<(), PluginError> {
        Ok(())
    }
}

impl Observation {
    /// Creates an observation without tools.
    pub fn of(messages: Vec<Message>) -> Observation {
        Observation {
            messages,
            tools: Vec::new(),
        }
    }
}

impl Transition {
    /// Creates a transition whose reward comes when the episode is graded. `ended`: the policy ended the episode;
    /// `over`: it has no further turn, for this or another reason.
    pub fn of(observation: Observation, ended: bool, over: bool) -> Transition {
        let status = match (ended, over) {
            (true, _) => Status::Terminated,
            (false, true) => Status::Truncated,
            (false, false) => Status::Running,
        };
        Transition {
            observation,
            reward: 0.0,
            status,
            metrics: Vec::new(),
        }
    }
}

/// Exports a type that implements [`Environment`] as the component's environment. In native builds it only checks the
/// type, which tests call directly.
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
