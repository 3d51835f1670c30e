"""The programs that Harness("NAME") starts unchanged, one file each.

A profile knows how its program is installed, configured and started without a terminal, so that
its model is the gateway and nothing else is asked for. All settings are in `LaunchSite.home`.
"""
