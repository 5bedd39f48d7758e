//! HTTP: the OpenAI dialect, feedback and operator pages
