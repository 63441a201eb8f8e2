"""Settings: msgspec structs filled from YAML < environment (STRATA_*) < flags. The only reader of os.environ."""

from strata.config.fields import ALWAYS_ON_FLAGS, ConfigField, config_fields
from strata.config.loading import load_config, parse_bytes
from strata.config.schema import (
    Config,
    EngineConfig,
    ModelConfig,
    SamplingConfig,
    ServerConfig,
    TelemetryConfig,
)

__all__ = [
    "ALWAYS_ON_FLAGS",
    "Config",
    "ConfigField",
    "EngineConfig",
    "ModelConfig",
    "SamplingConfig",
    "ServerConfig",
    "TelemetryConfig",
    "config_fields",
    "load_config",
    "parse_bytes",
]
