//! The clawhost command: serve a language model and keep training it from its conversations
