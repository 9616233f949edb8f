"""Grafana's dashboard as code: `python -m deploy.dashboards` writes deploy/grafana/seam.json."""
