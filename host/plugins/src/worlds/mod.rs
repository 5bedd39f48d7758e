//! The calls of each kind of plugin, one module per WIT world. Each call instantiates the component, calls it and
//! validates the result; no unvalidated result leaves these modules.

/// Calls a fresh instance of a plugin of kind `$kind`, and validates its answer with `$check`.
macro_rules! call_instance {
    ($plugin:ident, $call:ident, $kind:ident, |$guest:ident, $store:ident| $answer:expr, $check:expr) => {{
        let Export::$kind(export) = $plugin.export() else {
            return $plugin.wrong_kind(&$call, Kind::$kind);
        };
        let export = export.clone();
        invoke::on_plugin_threads($plugin.loaded(), $call, move |$store| {
            Box::pin(async move {
                let $guest = export.instantiate($store).await?;
                let answer = $answer.await.map_err(Stop::while_running)?;
                $check(answer.map_err(Stop::plugin_error)?).map_err(Stop::BadOutput)
            })
        })
        .await
    }};
}

pub(crate) mod advantage;
pub(crate) mod environment;
pub(crate) mod filter;
pub(crate) mod gate;
pub(crate) mod group_judge;
pub(crate) mod hint;
pub(crate) mod judge;
pub(crate) mod loss;
pub(crate) mod pair_loss;
