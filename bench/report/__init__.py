"""Reports: one self-contained HTML page of sections, its charts as SVG and PNG."""
