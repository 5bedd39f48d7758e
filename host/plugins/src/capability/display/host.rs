//! The host functions of `display`.
//!
//! A display is a resource of the store's table, so it ends when the guest drops it or the store is dropped, whichever comes
//! first.

use std::path::PathBuf;
use std::time::Duration;

use clawhost_sandbox::{
    Display, Frame, HEIGHT, Input, MouseButton, Owner, Page, SandboxError, Sandboxes, WIDTH,
};
use wasmtime::component::Resource;

use super::MAX_DISPLAYS;
use crate::bindings::{display, types};
use crate::store::CallState;
use crate::thread_pool::spawn_abort_on_drop;

type Answer<T> = wasmtime::Result<Result<T, display::Error>>;

impl CallState {
    /// Runs an operation within the wall time of the call.
    async fn run_display_work<T: Send + 'static>(
        &mut self,
        work: impl Future<Output = Result<T, SandboxError>> + Send + 'static,
    ) -> Result<T, display::Error> {
        let left = Duration::from_millis(self.wall_left_ms());
        match spawn_abort_on_drop(tokio::time::timeout(left, work)).await {
            Ok(Ok(answer)) => answer.map_err(error_to_guest),
            Ok(Err(_)) => Err(display::Error::Timeout),
            Err(_) => Err(display::Error::Unavailable(
                "the operation failed".to_owned(),
            )),
        }
    }

    /// What starts displays, if the store may have another one.
    fn displays(&self) -> Result<Sandboxes, display::Error> {
        let Some(grant) = &self.display else {
            return Err(display::Error::Denied("display is not granted".to_owned()));
        };
        if grant.live >= MAX_DISPLAYS {
            return Err(display::Error::Denied(format!(
                "{MAX_DISPLAYS} displays are open; drop one"
            )));
        }
        Ok(grant.sandboxes.clone())
    }

    async fn open_display(
        &mut self,
        profile: String,
        pages: Vec<Page>,
    ) -> Answer<Resource<Display>> {
        self.meter.host_call()?;
        let sandboxes = match self.displays() {
            Ok(sandboxes) => sandboxes,
            Err(error) => return Ok(Err(error)),
        };
        let owner = Owner {
            run: self.identity.run_id.clone(),
            episode: self.identity.call_id(),
        };
        let work = async move { sandboxes.open_display(owner, &profile, pages).await };
        match self.run_display_work(work).await {
            Ok(display) => {
                let display = self.table.push(display)?;
                if let Some(grant) = &mut self.display {
                    grant.live += 1;
                }
                Ok(Ok(display))
            }
            Err(error) => Ok(Err(error)),
        }
    }

    fn next_screenshot(&mut self) -> Option<PathBuf> {
        self.display.as_mut()?.next_screenshot()
    }
}

/// Stores a screenshot. The episode goes on without one that cannot be stored.
async fn store(file: PathBuf, screenshot: &[u8]) {
    if let Err(error) = tokio::fs::write(&file, screenshot).await {
        tracing::warn!("cannot store {}: {error}", file.display());
    }
}

impl display::Host for CallState {
    async fn open(&mut self, profile: String) -> Answer<Resource<Display>> {
        self.open_display(profile, Vec::new()).await
    }

    async fn open_pages(
        &mut self,
        profile: String,
        pages: Vec<display::Page>,
    ) -> Answer<Resource<Display>> {
        let pages = pages.into_iter().map(|page| Page {
            url: page.url,
            media_type: page.media_type,
            data: page.data,
        });
        self.open_display(profile, pages.collect()).await
    }
}

impl display::HostSurface for CallState {
    async fn observe(
        &mut self,
        display: Resource<Display>,
        with_tree: bool,
    ) -> Answer<display::Frame> {
        self.meter.host_call()?;
        let display = self.table.get(&display)?.clone();
        let file = self.next_screenshot();
        let work = async move {
            let frame = display.observe(with_tree).await?;
            if let Some(file) = file {
                store(file, &frame.screenshot).await;
            }
            Ok(frame)
        };
        Ok(self.run_display_work(work).await.map(frame_to_guest))
    }

    async fn tree(&mut self, display: Resource<Display>) -> Answer<String> {
        self.meter.host_call()?;
        let display = self.table.get(&display)?.clone();
        let file = self.next_screenshot();
        let work = async move {
            let tree = display.tree().await?;
            if let Some(file) = file {
                store(file, &display.observe(false).await?.screenshot).await;
            }
            Ok(tree)
        };
        Ok(self.run_display_work(work).await)
    }

    async fn act(&mut self, display: Resource<Display>, input: display::Input) -> Answer<()> {
        self.meter.host_call()?;
        let display = self.table.get(&display)?.clone();
        let input = input_from_guest(input);
        let work = async move { display.act(input).await };
        Ok(self.run_display_work(work).await)
    }

    async fn navigate(&mut self, display: Resource<Display>, url: String) -> Answer<()> {
        self.meter.host_call()?;
        let display = self.table.get(&display)?.clone();
        let work = async move { display.navigate(&url).await };
        Ok(self.run_display_work(work).await)
    }

    async fn query(
        &mut self,
        display: Resource<Display>,
        name: String,
        argument: String,
    ) -> Answer<String> {
        self.meter.host_call()?;
        let display = self.table.get(&display)?.clone();
        let work = async move { display.query(&name, &argument).await };
        Ok(self.run_display_work(work).await)
    }

    async fn drop(&mut self, display: Resource<Display>) -> wasmtime::Result<()> {
        self.table.delete(display)?;
        if let Some(grant) = &mut self.display {
            grant.live = grant.live.saturating_sub(1);
        }
        Ok(())
    }
}

fn input_from_guest(input: display::Input) -> Input {
    use display::Input as Guest;
    match input {
        Guest::Move((x, y)) => Input::Move(x, y),
        Guest::Click((x, y, button)) => Input::Click(
            x,
            y,
            match button {
                display::Button::Left => MouseButton::Left,
                display::Button::Middle => MouseButton::Middle,
                display::Button::Right => MouseButton::Right,
            },
        ),
        Guest::DoubleClick((x, y)) => Input::DoubleClick(x, y),
        Guest::Drag((from, to)) => Input::Drag(from, to),
        Guest::Scroll((right, down)) => Input::Scroll(right, down),
        Guest::Text(text) => Input::Text(text),
        Guest::Keys(chord) => Input::Keys(chord),
        Guest::Wait(milliseconds) => Input::Wait(milliseconds),
    }
}

fn frame_to_guest(frame: Frame) -> display::Frame {
    display::Frame {
        screenshot: types::Blob {
            media_type: "image/png".to_owned(),
            data: frame.screenshot,
        },
        width: WIDTH,
        height: HEIGHT,
        tree: frame.tree,
        url: Some(frame.url),
    }
}

fn error_to_guest(error: SandboxError) -> display::Error {
    match error {
        SandboxError::Denied(reason) | SandboxError::QuotaExceeded(reason) => {
            display::Error::Denied(reason)
        }
        SandboxError::NotFound(_) => display::Error::Closed,
        SandboxError::Timeout => display::Error::Timeout,
        SandboxError::Unavailable(reason) => display::Error::Unavailable(reason),
    }
}
