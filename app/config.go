package app

import "o2ibd/app/config"

// Config is the configuration in force.
type Config = config.Config
